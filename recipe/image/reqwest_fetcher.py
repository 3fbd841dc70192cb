"""The library's synchronous image fetcher, over the asynchronous downloads of `recipe.image.fetcher`.

That module and its HTTP client are loaded with the first download.
"""

from __future__ import annotations

from collections.abc import Callable

from recipe.argument import text
from recipe.image.error import MIB, ImageFault
from recipe.image.number import unsigned
from recipe.image.quota import ByteBudget
from recipe.image.run_sync import run_sync

DestinationFilter = Callable[[str, str], bool]

_MAX_BYTES = 32 * MIB
_TIMEOUT_S = 60.0


class ReqwestImageFetcher:
    """Downloads images from http and https URLs, following up to five redirects, within 60 seconds.

    Without a destination filter it connects to any address, through a proxy if the environment names one. Where
    strangers supply the URLs, install a filter with `with_destination_filter`.
    """

    __slots__ = ("_destination_filter", "_max_bytes")

    def __init__(self) -> None:
        self._max_bytes = _MAX_BYTES
        self._destination_filter: DestinationFilter | None = None

    @staticmethod
    def with_max_bytes(max_bytes: int) -> ReqwestImageFetcher:
        """A fetcher that refuses bodies of more than `max_bytes`; the default is 32 MiB."""
        fetcher = ReqwestImageFetcher()
        fetcher._max_bytes = unsigned("max_bytes", max_bytes, bits=64)
        return fetcher

    def with_destination_filter(self, destination_filter: DestinationFilter) -> ReqwestImageFetcher:
        """A fetcher with this size limit that connects only where `destination_filter(host, address)` returns True.

        It is asked for every address of the host of the URL and of every redirect. Anything but True, or an exception,
        rejects the address; a host without an admitted address raises ImageError of the kind "DestinationRejected".
        """
        if not callable(destination_filter):
            raise TypeError("destination_filter must be callable")
        fetcher = ReqwestImageFetcher.with_max_bytes(self._max_bytes)
        fetcher._destination_filter = destination_filter
        return fetcher

    def fetch(self, url: str) -> bytes:
        """The body behind `url`. Raises ImageError."""
        try:
            return run_sync(self.download(text("url", url)))
        except ImageFault as fault:
            raise fault.at() from None

    async def download(self, url: str, budget: ByteBudget | None = None) -> bytes:
        """Like `fetch`, on the running event loop, within what `budget` has left. Raises ImageFault."""
        from recipe.image.fetcher import FetchRules, download

        admits = None if self._destination_filter is None else _strict(self._destination_filter)
        return await download(url, FetchRules(self._max_bytes, _TIMEOUT_S, admits_address=admits), budget)


def _strict(destination_filter: DestinationFilter) -> DestinationFilter:
    def admits(host: str, address: str) -> bool:
        try:
            return destination_filter(host, address) is True
        except Exception:
            return False

    return admits
