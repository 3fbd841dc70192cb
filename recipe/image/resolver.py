"""From the image sources of a prompt to preprocessed images.

`resolve_images` is the core: downloads run concurrently on the event loop, decoding and resizing in whatever
`run_in_worker` offers (worker processes in a server, threads in the library). Errors are reported as if images were
handled one after the other: limits known beforehand, then what could not be had, then the total size, then what does
not decode, each at the first image concerned. The quota changes only when everything has succeeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, NoReturn, Protocol, TypeVar

from recipe.argument import items, quoted
from recipe.image.error import MIB, ImageError, ImageFault, prefix
from recipe.image.info import ImageInfo, MultiModalData
from recipe.image.policy import ImagePolicy
from recipe.image.preprocess import (
    LOW_DETAIL_PX,
    MAX_DIMENSION_PX,
    LoadOutcome,
    OpenCvImagePreprocessor,
    PreprocessOptions,
    load,
)
from recipe.image.quota import ByteBudget, ImageQuota
from recipe.image.reqwest_fetcher import ReqwestImageFetcher
from recipe.image.run_sync import run_sync
from recipe.image_source import ImageDetail, ImageSource

_T = TypeVar("_T")
RunInWorker = Callable[..., Awaitable[Any]]

_MAX_URL_BYTES = 8192
_MAX_DOWNLOADS = 8  # at a time, for one request


class ImageFetcher(Protocol):
    """Whatever downloads images."""

    async def download(self, url: str, budget: ByteBudget) -> bytes:
        """The body behind `url`, taken from `budget`. Raises ImageFault."""


class ImageResolver:
    """Resolves image sources with the given fetcher and preprocessor."""

    __slots__ = ("_fetcher", "_preprocessor")

    def __init__(self, fetcher: ReqwestImageFetcher, preprocessor: OpenCvImagePreprocessor) -> None:
        self._fetcher = _checked("fetcher", fetcher, ReqwestImageFetcher)
        self._preprocessor = _checked("preprocessor", preprocessor, OpenCvImagePreprocessor)

    def resolve(self, sources: Sequence[ImageSource], quota: ImageQuota) -> MultiModalData:
        """Fetch and preprocess `sources`, and record them in `quota` if all goes well. Raises ImageError."""
        checked = items("sources", sources, ImageSource)
        _checked("quota", quota, ImageQuota)
        return run_sync(resolve_images(checked, quota, fetcher=self._fetcher))


async def resolve_images(
    sources: Sequence[ImageSource],
    quota: ImageQuota,
    *,
    fetcher: ImageFetcher,
    policy: ImagePolicy | None = None,
    run_in_worker: RunInWorker = asyncio.to_thread,
) -> MultiModalData:
    """Fetch and preprocess `sources`, in their order, and record them in `quota`.

    `run_in_worker(function, *arguments)` is awaited for the function's result; function, arguments and result can be
    pickled. Raises ImageError, whose message names the place of the image in the request, and CalcResizeError.
    """
    resolution = _Resolution(sources, quota, fetcher, policy or ImagePolicy(), run_in_worker)
    resolution.check_limits()
    outcomes = await resolution.load_all()
    resolution.check_total(outcomes)
    images = [resolution.image(place, outcome) for place, outcome in enumerate(outcomes)]
    quota.record(len(images), sum(outcome.byte_size for outcome in outcomes))
    return MultiModalData(images)


class _Resolution:
    """One call of `resolve_images`."""

    def __init__(
        self,
        sources: Sequence[ImageSource],
        quota: ImageQuota,
        fetcher: ImageFetcher,
        policy: ImagePolicy,
        run_in_worker: RunInWorker,
    ) -> None:
        self.sources = sources
        self.quota = quota
        self.fetcher = fetcher
        self.policy = policy
        self.run_in_worker = run_in_worker
        self.downloads = asyncio.Semaphore(_MAX_DOWNLOADS)

    def check_limits(self) -> None:
        """Refuse what can be refused before anything is fetched."""
        limit, used = self.policy.max_images, self.quota.image_count()
        count = used + len(self.sources)
        if count > limit:
            over = self.sources[max(0, limit - used)].path
            text = f"Too many images: max {limit} images per request, got {count}"
            raise ImageError.of("TooManyImages", prefix(over) + text)
        for source in self.sources:
            if source.url is not None:
                _check_url(source.url, source.path)

    async def load_all(self) -> list[LoadOutcome]:
        """Have and preprocess every image; the first that cannot be had is an error."""
        budget = self._budget()
        options = {detail: PreprocessOptions(detail, MAX_DIMENSION_PX, LOW_DETAIL_PX) for detail in self._details()}
        outcomes: list[LoadOutcome] = []
        loads = _in_order(self._load(source, options[source.detail], budget) for source in self.sources)
        async with aclosing(loads):
            async for outcome in loads:
                if outcome.fault is not None and not outcome.is_loaded:
                    self._fail(len(outcomes), outcome.fault)
                outcomes.append(outcome)
        return outcomes

    def check_total(self, outcomes: Sequence[LoadOutcome]) -> None:
        """Refuse files that are too large together."""
        limit, total = self.policy.max_total_image_bytes, self.quota.byte_size()
        for source, outcome in zip(self.sources, outcomes, strict=True):
            total += outcome.byte_size
            if total > limit:
                sizes = f"max {limit // MIB} MB per request, got {total // MIB} MB"
                text = f"Total image size exceeds the limit: {sizes}"
                raise ImageError.of("TotalSizeTooLarge", prefix(source.path) + text)

    def image(self, place: int, outcome: LoadOutcome) -> ImageInfo:
        """The image of a source, or its error."""
        if outcome.info is None:
            self._fail(place, outcome.fault or ImageFault("Decode"))
        return outcome.info

    async def _load(self, source: ImageSource, options: PreprocessOptions, budget: ByteBudget) -> LoadOutcome:
        file = source.data_url if source.data is None else source.data
        if source.url is not None:
            try:
                async with self.downloads:
                    file = await self.fetcher.download(source.url, budget)
            except ImageFault as fault:
                return LoadOutcome(fault=fault)
        outcome: LoadOutcome = await self.run_in_worker(load, file, options, self.policy.max_image_bytes)
        return outcome

    def _budget(self) -> ByteBudget:
        """What downloads may bring: the limit less what came before and what is in the request itself."""
        inline = sum(map(_inline_bytes, self.sources))
        return ByteBudget(self.policy.max_total_image_bytes - self.quota.byte_size() - inline)

    def _details(self) -> set[ImageDetail]:
        return {source.detail for source in self.sources}

    def _fail(self, place: int, fault: ImageFault) -> NoReturn:
        """Raise `fault` for the source at `place`; images are numbered among those of the same path."""
        path = self.sources[place].path
        index = sum(source.path == path for source in self.sources[:place])
        raise fault.at(path, index)


async def _in_order(coroutines: Iterable[Coroutine[Any, Any, _T]]) -> AsyncGenerator[_T, None]:
    """Run all at once, yield the results in order; what still runs when the reader stops is cancelled."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _check_url(url: str, path: str) -> None:
    if url[:4].lower() != "http":
        raise ImageError.of("InvalidUrl", f"{prefix(path)}invalid url: {quoted(url)}")
    length = len(url.encode())
    if length > _MAX_URL_BYTES:
        text = f"external link length {length} too long, max link length {_MAX_URL_BYTES}"
        raise ImageError.of("UrlTooLong", prefix(path) + text)


def _inline_bytes(source: ImageSource) -> int:
    """Size of an image inside the request; of a data URL, to within a few bytes."""
    if source.data is not None:
        return len(source.data)
    url = source.data_url or ""
    return (len(url) - url.find(",") - 1) * 3 // 4


def _checked(name: str, value: object, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"argument '{name}': '{type(value).__name__}' object cannot be cast as '{kind.__name__}'")
    return value
