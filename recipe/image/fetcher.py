"""Downloads of images over HTTP. The only module here that opens sockets.

Every hop of a redirect chain goes through the same gate: the URL is parsed and admitted, its host is looked up once,
every address is checked, and the connection is made to an address that passed; nobody looks the name up again. Without
an address check (the plain library fetcher) the client library connects on its own and honours proxies of the
environment. Bodies are read as they are, never decompressed, and counted while they arrive.
"""

from __future__ import annotations

import asyncio
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import aiohttp
from yarl import URL

from recipe.argument import quoted
from recipe.image.error import ImageFault, too_large
from recipe.image.image_format import sniff
from recipe.image.policy import ImagePolicy, media_type_agrees
from recipe.image.quota import ByteBudget
from recipe.image.url import HttpUrl, UrlError, address_text, parse

HostLookup: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_FAMILIES = {True: socket.AF_INET6, False: socket.AF_INET}
_LOOKUPS = ThreadPoolExecutor(64, thread_name_prefix="image-dns")  # slow name servers hold up only one another


@dataclass(frozen=True, slots=True)
class FetchRules:
    """What one download may do. `timeout_s` covers all of it; `max_bytes` is the size of the body.

    `admits_address(host, address)` is asked for every address of every hop; None connects anywhere. `is_strict` refuses
    malformed URLs for good, and files that are not what their media type says.
    """

    max_bytes: int
    timeout_s: float
    max_redirects: int = 5
    admits_url: Callable[[HttpUrl], bool] | None = None
    admits_address: Callable[[str, str], bool] | None = None
    is_strict: bool = False


class PolicyImageFetcher:
    """Downloads for a server: only what an `ImagePolicy` admits. `look_up` maps a host name and port to addresses."""

    __slots__ = ("_look_up", "_rules")

    def __init__(self, policy: ImagePolicy, look_up: HostLookup | None = None) -> None:
        self._look_up = look_up or look_up_host
        self._rules = FetchRules(
            max_bytes=policy.max_image_bytes,
            timeout_s=policy.image_timeout_s,
            max_redirects=policy.max_image_redirects,
            admits_url=policy.admits_url,
            admits_address=lambda host, address: policy.admits_address(address),
            is_strict=True,
        )

    async def download(self, url: str, budget: ByteBudget) -> bytes:
        """The body behind `url`. Raises ImageFault."""
        return await download(url, self._rules, budget, self._look_up)


async def look_up_host(host: str, port: int) -> list[str]:
    """The addresses of a host name, from the system. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_LOOKUPS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def download(
    url: str, rules: FetchRules, budget: ByteBudget | None = None, look_up: HostLookup = look_up_host
) -> bytes:
    """The body behind `url` after redirects.

    Raises ImageFault: InvalidUrl, DestinationRejected, ImageTooLarge, UnsupportedMediaType, FetchStatus (retryable from
    500 on), or Fetch (retryable) for everything that may go better next time.
    """
    text = f"Failed to download image from {url}"
    try:
        async with asyncio.timeout(rules.timeout_s):
            return await _Download(text, rules, budget, look_up).run(url)
    except (TimeoutError, OSError, aiohttp.ClientError, ValueError):
        raise ImageFault("Fetch", text, is_retryable=True) from None


class _Download:
    """One download: a session of its own, so that nothing of one request reaches another."""

    def __init__(self, text: str, rules: FetchRules, budget: ByteBudget | None, look_up: HostLookup) -> None:
        self.text = text
        self.rules = rules
        self.budget = budget
        self.look_up = look_up
        self.pinned = _PinnedAddresses()

    async def run(self, url: str) -> bytes:
        target = self._first_target(url)
        async with self._session() as session:
            for _ in range(self.rules.max_redirects + 1):
                await self._admit(target)
                async with session.get(
                    URL(target.text, encoded=True), headers=_authorization(target), allow_redirects=False
                ) as answer:
                    redirect = self._redirect(answer, target)
                    if redirect is None:
                        return await self._body(answer)
                target = redirect
        raise ImageFault("Fetch", self.text, is_retryable=True)

    def _first_target(self, url: str) -> HttpUrl:
        try:
            return parse(url)
        except UrlError:
            if self.rules.is_strict:
                raise ImageFault("InvalidUrl", f"invalid url: {quoted(url)}") from None
            raise

    def _session(self) -> aiohttp.ClientSession:
        checked = self.rules.admits_address is not None
        resolver: Any = self.pinned if checked else None
        connector = aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, force_close=True)
        return aiohttp.ClientSession(
            connector=connector,
            trust_env=not checked,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "*/*"},
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def _admit(self, url: HttpUrl) -> None:
        """Check one hop, and pin its host to the addresses that may be connected to."""
        if self.rules.admits_url is not None and not self.rules.admits_url(url):
            raise ImageFault("DestinationRejected", self.text)
        admits = self.rules.admits_address
        if admits is None:
            return
        literal = url.address
        found = [address_text(literal)] if literal else await self.look_up(url.host, url.port)
        if not found:
            raise OSError("no address")
        admitted = [address for address in found if admits(url.host, address)]
        if not admitted:
            raise ImageFault("DestinationRejected", self.text)
        self.pinned.addresses[url.host] = admitted

    def _redirect(self, answer: aiohttp.ClientResponse, base: HttpUrl) -> HttpUrl | None:
        """Where `answer` sends us, None if it is final."""
        location = answer.headers.get("Location")
        if answer.status in _REDIRECTS and location is not None and location.isprintable():
            try:
                target = parse(location, base)
            except UrlError as error:
                if error.is_foreign:
                    raise
            else:
                user_info = base.user_info if target[:3] == base[:3] else None
                return target if self.rules.is_strict else target._replace(user_info=user_info)
        if not 200 <= answer.status < 300:
            raise ImageFault("FetchStatus", self.text, is_retryable=answer.status >= 500)
        return None

    async def _body(self, answer: aiohttp.ClientResponse) -> bytes:
        if (answer.content_length or 0) > self.rules.max_bytes:
            raise too_large(self.rules.max_bytes)
        chunks: list[bytes] = []
        size = 0
        async for chunk in answer.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > self.rules.max_bytes:
                raise too_large(self.rules.max_bytes)
            if self.budget is not None and not self.budget.take(len(chunk)):
                raise ImageFault("Fetch", self.text, is_retryable=True)
        body = b"".join(chunks)
        if self.rules.is_strict:
            self._check_media_type(answer.headers.get("Content-Type", ""), body)
        return body

    def _check_media_type(self, content_type: str, body: bytes) -> None:
        image_format = sniff(body)
        if image_format is None or not media_type_agrees(content_type, image_format):
            raise ImageFault("UnsupportedMediaType")


class _PinnedAddresses:
    """The resolver given to the HTTP client: it knows the checked addresses and nothing else. `host` as in the URL."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
        if host not in self.addresses:
            raise OSError("this host was not checked")
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": _FAMILIES[":" in address],
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
            for address in self.addresses[host]
        ]

    async def close(self) -> None:
        """Nothing is held."""


def _authorization(url: HttpUrl) -> dict[str, str]:
    """What the user and the password of a URL are as a header. Raises ValueError for a user that cannot be one."""
    if url.user_info is None:
        return {}
    user, _, password = url.user_info.partition(":")
    if ":" in unquote(user):
        raise ValueError("the name of a user has no colon")
    return {"Authorization": f"Basic {b64encode(unquote(f'{user}:{password}').encode()).decode()}"}
