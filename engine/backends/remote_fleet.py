"""The engines, and which of them gets a request.

A task looks at every engine each `health_interval_s`: its health and its load. Where the endpoints come from a file, it
is read again each time: an engine that is no longer in it is drained, a new one is used from the next request on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.backend import EngineDeadError, EngineRequest, EnginesUnavailableError
from engine.backends.balancer import Favourite, Load, choose
from engine.backends.prefix_affinity import BLOCK_TOKENS, PrefixAffinity, prefix_hashes
from engine.backends.remote_dialect import Dialect
from engine.backends.remote_endpoint import Endpoint, RemoteLimits, parse_endpoint
from engine.config import ConfigError

logger = logging.getLogger(__name__)

_FILE_MARK = "@"
_MEAN_WEIGHT = 0.05
_FIRST_MEAN_OUTPUT_TOKENS = 256.0


@dataclass(slots=True)
class Route:
    """Where a request may go: its prefix, and the engines that it has been at."""

    request: EngineRequest
    hashes: Sequence[int]
    tried: set[str] = field(default_factory=set)


class Fleet:
    """`endpoints` are URLs with commas between, or `@FILE` with one a line."""

    def __init__(self, endpoints: str, dialect: Dialect, limits: RemoteLimits, api_key: str | None = None) -> None:
        self.dialect = dialect
        self.limits = limits
        self._source = endpoints
        self._api_key = api_key
        self._endpoints = {url: Endpoint(url, limits, api_key) for url in read_endpoints(endpoints)}
        self._affinity: PrefixAffinity[str] = PrefixAffinity()
        self._mean_output_tokens = _FIRST_MEAN_OUTPUT_TOKENS
        self._watch: asyncio.Task[None] | None = None
        self._turn = 0
        self._is_closed = False
        self._cleanups: set[asyncio.Task[None]] = set()

    @property
    def endpoints(self) -> list[Endpoint]:
        return list(self._endpoints.values())

    async def start(self) -> None:
        """Look at every engine once, and from now on regularly."""
        if self._watch is None:
            await self.look()
            self._watch = asyncio.create_task(self._keep_looking())

    async def look(self) -> None:
        await asyncio.gather(*(endpoint.look(self.dialect) for endpoint in self.endpoints))

    def route(self, request: EngineRequest) -> Route:
        return Route(request, prefix_hashes(request.prompt_token_ids, request.cache_salt))

    def choose(self, route: Route) -> Endpoint:
        """The engine for the next attempt of `route`. Raises `EnginesUnavailableError` when there is none left."""
        self.check_open()
        now = time.monotonic()
        usable = [end for end in self._endpoints.values() if end.url not in route.tried and end.is_usable(now)]
        if not usable:
            raise EnginesUnavailableError(self.reason() or f"no engine could serve the request{self.misfits()}")
        self._turn = (self._turn + 1) % len(usable)
        usable = usable[self._turn :] + usable[: self._turn]  # equally good ones take turns
        expected = min(route.request.sampling_params.max_tokens, int(self._mean_output_tokens))
        loads = [endpoint.load for endpoint in usable]
        place = choose(loads, len(route.request.prompt_token_ids), expected, self._favourite(route, usable))
        chosen = usable[place]
        route.tried.add(chosen.url)
        self._affinity.record(route.hashes, chosen.url)
        return chosen

    def note_output(self, num_tokens: int) -> None:
        """Take the length of an output into what is expected of the next ones."""
        self._mean_output_tokens += _MEAN_WEIGHT * (num_tokens - self._mean_output_tokens)

    def note_busy(self, endpoint: Endpoint) -> None:
        """An engine has sent a request away, which says nothing of its health."""
        endpoint.faults["busy"] += 1
        endpoint.circuit.abandon()

    def note_failure(self, endpoint: Endpoint) -> None:
        """An engine has failed a request."""
        endpoint.faults["failed"] += 1
        endpoint.circuit.fail(time.monotonic())

    def note_misfit(self, endpoint: Endpoint, misfit: str) -> None:
        """An engine was started in another way than this front."""
        endpoint.misfit = misfit
        self.note_failure(endpoint)

    def note_unreachable(self, endpoint: Endpoint, problem: str) -> None:
        """An engine could not be connected to: nothing goes there until a look says otherwise."""
        endpoint.faults["unreachable"] += 1
        endpoint.circuit.abandon()
        endpoint.note_reachable(problem)
        self._affinity.forget(endpoint.url)

    def reason(self) -> str:
        """Why no engine can be used; empty if one can."""
        if self._is_closed:
            return "the backend was closed"
        now = time.monotonic()
        if any(endpoint.is_usable(now) for endpoint in self._endpoints.values()):
            return ""
        return f"none of the {len(self._endpoints)} engines can be used now{self.misfits()}"

    def misfits(self) -> str:
        """What has to be changed at engines that run, as the end of a sentence; empty if nothing is known."""
        known = sorted({endpoint.misfit for endpoint in self._endpoints.values() if endpoint.misfit})
        return f": {'; '.join(known)}" if known else ""

    def total_load(self) -> Load:
        return sum((endpoint.load for endpoint in self._endpoints.values()), Load())

    def check_open(self) -> None:
        """Raises `EngineDeadError` once the fleet was closed."""
        if self._is_closed:
            raise EngineDeadError("the backend was closed")

    def clean_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Have `work` done by itself, while nobody waits for it but `aclose`."""
        task = asyncio.create_task(work)
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)

    def close(self) -> None:
        """Let no request in any more; `aclose` does the rest."""
        self._is_closed = True

    async def aclose(self) -> None:
        self.close()
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None
        await asyncio.gather(*self._cleanups, return_exceptions=True)
        await asyncio.gather(*(endpoint.aclose() for endpoint in self.endpoints))

    def _favourite(self, route: Route, usable: Sequence[Endpoint]) -> Favourite | None:
        found = self._affinity.find(route.hashes)
        if found is None:
            return None
        url, num_blocks = found
        place = next((place for place, endpoint in enumerate(usable) if endpoint.url == url), None)
        return None if place is None else Favourite(place, num_blocks * BLOCK_TOKENS)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self.limits.health_interval_s)
            try:
                await self._reload()
                await self.look()
            except Exception:
                logger.exception("looking at the engines failed")

    async def _reload(self) -> None:
        """Follow the file of endpoints, if they come from one; a file that cannot be used changes nothing."""
        if not self._source.startswith(_FILE_MARK):
            return
        try:
            urls = await asyncio.to_thread(read_endpoints, self._source)
        except ConfigError as error:
            logger.warning("%s", error)
            return
        for url in urls:
            if url not in self._endpoints:
                self._endpoints[url] = Endpoint(url, self.limits, self._api_key)
        for url, endpoint in list(self._endpoints.items()):
            endpoint.is_draining = url not in urls
            if endpoint.is_draining and not endpoint.num_open:
                del self._endpoints[url]
                await endpoint.aclose()


def read_endpoints(source: str) -> list[str]:
    """The URLs that `source` names, each once. Raises `ConfigError`."""
    if source.startswith(_FILE_MARK):
        try:
            lines = Path(source[1:]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"endpoints cannot be read: {error}") from None
        named = [line.partition("#")[0].strip() for line in lines]
    else:
        named = [url.strip() for url in source.split(",")]
    urls = list(dict.fromkeys(url.rstrip("/") for url in named if url))
    if not urls:
        raise ConfigError("endpoints must name at least one engine")
    for url in urls:
        parse_endpoint(url)
    return urls
