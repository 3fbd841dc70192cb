"""One engine of the fleet: its address, its connections, whether it can be used, and what it has under way."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import aiohttp
from yarl import URL

from engine.backends.balancer import Load
from engine.backends.endpoint_stats import EndpointStats
from engine.backends.remote_circuit import Circuit
from engine.backends.remote_dialect import Dialect
from engine.backends.remote_identity import fingerprint
from engine.config import ConfigError

_SOCKET_SCHEME = "unix:"
_MAX_LOAD_BYTES = 4 << 20
KEEP_ALIVE_S = 4.0  # less than the 5 s after which uvicorn, which both engines use, closes an idle connection
NO_LIMIT_S = 1e7
IDENTITY_AGE_S = 60.0
"""Seconds after which an engine is asked anew what it is: behind an address there may be another one by then."""


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """How long engines are waited for, in seconds: to connect, for the first token, for the next one, for a probe.

    `health_interval_s` passes between two looks at an engine.
    """

    connect_s: float = 3.0
    first_token_s: float = 120.0
    token_gap_s: float = 60.0
    probe_s: float = 2.0
    health_interval_s: float = 2.0


class Share:
    """What one open request adds to its engine's load."""

    __slots__ = ("_endpoint", "_tokens")

    def __init__(self, endpoint: Endpoint, num_prompt_tokens: int) -> None:
        self._endpoint = endpoint
        self._tokens = num_prompt_tokens
        endpoint.num_open += 1
        endpoint.num_open_tokens += num_prompt_tokens

    def grow(self, num_tokens: int) -> None:
        self._tokens += num_tokens
        self._endpoint.num_open_tokens += num_tokens

    def close(self) -> None:
        self._endpoint.num_open -= 1
        self._endpoint.num_open_tokens -= self._tokens


class Endpoint:
    """Belongs to the event loop in which it is first used.

    `is_reachable` is what the last look said; before the first one, hope. A draining endpoint gets no new requests.
    `misfit` is what has to be changed before it can serve. `system_fingerprint` is what the engine was when it was last
    asked. `name` is the URL without a password in it.
    """

    def __init__(self, url: str, limits: RemoteLimits, api_key: str | None = None) -> None:
        self.url = url
        self.circuit = Circuit()
        self.is_reachable = True
        self.is_draining = False
        self.problem = ""
        self.misfit = ""
        self.num_open = 0
        self.num_open_tokens = 0
        self.num_attempts = 0
        self.num_retries = 0
        self.faults: Counter[str] = Counter()
        self.system_fingerprint: str | None = None
        self._identified_at = -IDENTITY_AGE_S
        self._base, self._socket_path = parse_endpoint(url)
        self.name = url if self._base.user is None else str(self._base.with_user(None))
        self._limits = limits
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._others = Load()  # what other fronts have under way here
        self._session: aiohttp.ClientSession | None = None

    @property
    def own_load(self) -> Load:
        return Load(self.num_open, self.num_open_tokens)

    @property
    def load(self) -> Load:
        """Everything under way here, as far as is known."""
        return self.own_load + self._others

    def is_usable(self, now: float) -> bool:
        return self.is_reachable and not self.is_draining and self.circuit.allows(now)

    def stats(self) -> EndpointStats:
        now = time.monotonic()
        return EndpointStats(
            endpoint=self.name,
            is_usable=self.is_usable(now),
            is_draining=self.is_draining,
            circuit=self.circuit.state(now),
            requests=self.num_open,
            kv_tokens=self.num_open_tokens,
            other_requests=self._others.requests,
            other_kv_tokens=self._others.kv_tokens,
            attempts=self.num_attempts,
            retries=self.num_retries,
            faults=self.faults,
        )

    async def post(self, path: str, body: bytes) -> aiohttp.ClientResponse:
        """Send a request; there is no time limit but that of connecting."""
        headers = {"Content-Type": "application/json", **self._headers}
        return await self._opened().post(self._base / path[1:], data=body, headers=headers)

    async def look(self, dialect: Dialect) -> None:
        """Ask the engine how it is and what it does; note both."""
        try:
            async with asyncio.timeout(self._limits.probe_s):
                status, _ = await self._get(dialect.health_path)
        except (aiohttp.ClientError, OSError) as error:
            self.note_reachable(f"it cannot be reached: {str(error) or type(error).__name__:.200}")
            return
        self.note_reachable("" if status == 200 else f"its health check says {status}")
        if status == 200:
            with suppress(aiohttp.ClientError, OSError):  # an engine that does not tell its load can be used
                await self._look_at_load(dialect)
            with suppress(aiohttp.ClientError, OSError):
                await self._identify(dialect)

    def note_reachable(self, problem: str) -> None:
        self.problem, self.is_reachable = problem, not problem
        if problem:
            self.misfit = ""
            self._others, self._identified_at = Load(), -IDENTITY_AGE_S

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _look_at_load(self, dialect: Dialect) -> None:
        """Take what the engine has beyond our own requests, before or after it was asked, as that of others."""
        own_before = self.own_load
        async with asyncio.timeout(self._limits.probe_s):
            status, body = await self._get(dialect.load_path)
        told = dialect.load(body) if status == 200 else None
        own = Load(max(own_before.requests, self.num_open), max(own_before.kv_tokens, self.num_open_tokens))
        self._others = Load() if told is None else told.beyond(own)

    async def _identify(self, dialect: Dialect) -> None:
        """Ask the engine what it is, after it was away and every now and then."""
        now = time.monotonic()
        if now - self._identified_at < IDENTITY_AGE_S:
            return
        self._identified_at = now
        async with asyncio.timeout(self._limits.probe_s):
            answers = [await self._get(path) for path in dialect.identity_paths]
        self.system_fingerprint = fingerprint(dialect.kind, (body for status, body in answers if status == 200))

    async def _get(self, path: str) -> tuple[int, bytes]:
        async with self._opened().get(self._base / path[1:], headers=self._headers) as response:
            return response.status, await response.content.read(_MAX_LOAD_BYTES)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector: aiohttp.BaseConnector
            if self._socket_path is None:
                connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
            else:
                connector = aiohttp.UnixConnector(self._socket_path, limit=0, keepalive_timeout=KEEP_ALIVE_S)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_s)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, read_bufsize=1 << 18, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session


def parse_endpoint(url: str) -> tuple[URL, str | None]:
    """The base URL of an endpoint, and the Unix socket it is behind, if any. Raises `ConfigError`."""
    if url.startswith(_SOCKET_SCHEME) and len(url) > len(_SOCKET_SCHEME):
        return URL("http://engine/"), url.removeprefix(_SOCKET_SCHEME)
    try:
        base = URL(url)
    except ValueError:
        base = URL()
    if base.scheme not in ("http", "https") or not base.host or base.query_string or base.fragment:
        raise ConfigError(f"endpoints must be http://HOST:PORT, https://HOST:PORT or unix:PATH. Given: {url!r:.200}")
    return base, None
