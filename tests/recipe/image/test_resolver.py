import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from recipe.conversation import BytesImageSource, DataUrlImageSource, ImageSource, UrlImageSource
from recipe.image import (
    ImageError,
    ImageInfo,
    ImagePolicy,
    ImageQuota,
    ImageResolver,
    OpenCvImagePreprocessor,
    ReqwestImageFetcher,
    resolve_images,
)
from recipe.image.error import UNSUPPORTED_IMAGE, ImageFault
from recipe.image.preprocess import LoadOutcome
from recipe.image.quota import ByteBudget
from tests.lived_time import HANG_S, until
from tests.recipe.image.pictures import PNG, encoded, picture

WIDE = encoded(picture(200, 20))


class Shelf:
    """A fetcher with a fixed stock: URL to body, to a delay in seconds before it, or to a fault."""

    def __init__(self, stock: dict[str, bytes | float | ImageFault]) -> None:
        self.stock = stock
        self.active = self.most_active = 0
        self.cancelled: list[str] = []

    async def download(self, url: str, budget: ByteBudget) -> bytes:
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            return await self._take(url, budget)
        except asyncio.CancelledError:
            self.cancelled.append(url)
            raise
        finally:
            self.active -= 1

    async def _take(self, url: str, budget: ByteBudget) -> bytes:
        found = self.stock[url]
        if isinstance(found, ImageFault):
            raise found
        if isinstance(found, float):
            await asyncio.sleep(found)
            found = PNG
        if not budget.take(len(found)):
            raise ImageFault("Fetch", "no budget left", is_retryable=True)
        return found


async def resolve(*sources: ImageSource, quota: ImageQuota | None = None, **options: Any) -> list[tuple[int, int]]:
    options.setdefault("fetcher", Shelf({}))
    data = await resolve_images(sources, quota or ImageQuota(), **options)
    return [(image.width, image.height) for image in data.images]


def inline(data: bytes, path: str = "") -> BytesImageSource:
    return BytesImageSource(data, path=path)


async def failure(*sources: ImageSource, **options: Any) -> tuple[str, str]:
    with pytest.raises(ImageError) as error:
        await resolve(*sources, **options)
    return error.value.kind, str(error.value)


async def test_images_come_in_the_order_of_their_sources_however_long_each_takes() -> None:
    shelf = Shelf({"http://slow": 0.2, "http://fast": WIDE})
    sizes = await resolve(UrlImageSource("http://slow"), inline(WIDE), UrlImageSource("http://fast"), fetcher=shelf)
    assert sizes == [(630, 476), (1722, 182), (1722, 182)]


async def test_downloads_of_a_request_run_at_once_but_not_all_of_many() -> None:
    shelf = Shelf({"http://x": 0.1})
    await resolve(*[UrlImageSource("http://x")] * 12, fetcher=shelf, run_in_worker=instead_of_worker)
    assert shelf.most_active == 8


async def instead_of_worker(function: Callable[..., Any], *arguments: Any) -> LoadOutcome:
    """Pretends to preprocess."""
    return LoadOutcome(1, True, ImageInfo(b"x", 14, 14))


async def test_decoding_can_run_in_a_worker_process() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:

        async def run_in_worker(function: Callable[..., Any], *arguments: Any) -> Any:
            return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)

        assert await resolve(inline(PNG), inline(WIDE), run_in_worker=run_in_worker) == [(630, 476), (1722, 182)]
        assert (await failure(inline(b"junk"), run_in_worker=run_in_worker))[0] == "UnsupportedMediaType"


async def longest_pause(task: asyncio.Task[Any]) -> float:
    """How much of the work of `task` was done without a turn of the event loop, at most; in CPU time, from 0 to 1."""
    longest, started = 0.0, time.process_time()
    last = started
    while not task.done():
        await asyncio.sleep(0.001)
        longest, last = max(longest, time.process_time() - last), time.process_time()
    return longest / (last - started)


async def test_the_event_loop_stays_free_while_images_are_decoded() -> None:
    large = encoded(picture(2000, 2000))
    pauses = [1.0]
    while min(pauses) > 0.3 and len(pauses) < 5:  # in one try the machine may have had no time for the loop, not in all
        task = asyncio.create_task(resolve(inline(large), inline(large)))
        pauses.append(await longest_pause(task))
        assert await task == [(1302, 1302), (1302, 1302)]
    assert min(pauses) <= 0.3


async def test_an_error_names_the_place_and_the_number_among_images_of_that_place() -> None:
    assert await failure(inline(PNG, "a"), inline(PNG, "b"), inline(b"x", "b")) == (
        "UnsupportedMediaType",
        f"b.image[1]: {UNSUPPORTED_IMAGE}",
    )
    assert await failure(inline(PNG), inline(b"")) == ("EmptyImage", f"image[1]: {UNSUPPORTED_IMAGE}")


@pytest.mark.parametrize(
    ("sources", "kind"),
    [
        ([inline(b"junk"), DataUrlImageSource("nonsense")], "InvalidDataUrl"),
        ([inline(b""), DataUrlImageSource("nonsense")], "EmptyImage"),
        ([inline(b"junk"), UrlImageSource("ftp://x")], "InvalidUrl"),
        ([inline(b""), UrlImageSource("http://x/" + "é" * 5000)], "UrlTooLong"),
        ([UrlImageSource("http://gone"), inline(b"")], "FetchStatus"),
        ([inline(b""), UrlImageSource("http://gone")], "EmptyImage"),
        ([inline(b"junk"), UrlImageSource("http://gone")], "FetchStatus"),
    ],
)
async def test_files_that_cannot_be_had_come_before_files_that_do_not_decode(
    sources: list[ImageSource], kind: str
) -> None:
    shelf = Shelf({"http://gone": ImageFault("FetchStatus", "404")})
    assert (await failure(*sources, fetcher=shelf))[0] == kind


async def test_the_number_of_images_is_limited_over_all_calls_of_a_request() -> None:
    policy, quota = ImagePolicy(max_images=3), ImageQuota()
    await resolve(inline(PNG), inline(PNG), quota=quota, policy=policy)
    kind, text = await failure(inline(PNG, "a"), inline(PNG, "b"), quota=quota, policy=policy)
    assert (kind, text) == ("TooManyImages", "b: Too many images: max 3 images per request, got 4")
    assert (quota.image_count(), quota.byte_size()) == (2, 2 * len(PNG))


async def test_the_bytes_of_all_images_are_limited_together() -> None:
    policy, quota = ImagePolicy(max_total_image_bytes=2 * len(PNG)), ImageQuota()
    await resolve(inline(PNG), quota=quota, policy=policy)
    kind, text = await failure(inline(PNG, "a"), inline(PNG, "b"), quota=quota, policy=policy)
    assert kind == "TotalSizeTooLarge"
    assert text.startswith("b: Total image size exceeds the limit")
    assert (quota.image_count(), quota.byte_size()) == (1, len(PNG))


async def test_downloads_get_what_the_images_inside_the_request_leave() -> None:
    shelf = Shelf({"http://x": PNG})
    options = {"fetcher": shelf, "policy": ImagePolicy(max_total_image_bytes=2 * len(PNG))}
    assert len(await resolve(UrlImageSource("http://x"), inline(PNG), **options)) == 2
    kind, _ = await failure(UrlImageSource("http://x"), UrlImageSource("http://x"), inline(PNG), **options)
    assert kind == "Fetch"


async def test_a_single_image_is_limited_too() -> None:
    policy = ImagePolicy(max_image_bytes=len(PNG) - 1)
    assert (await failure(inline(PNG, "a"), policy=policy))[0] == "ImageTooLarge"


async def test_a_failure_cancels_what_is_still_being_fetched() -> None:
    shelf = Shelf({"http://gone": ImageFault("FetchStatus", "404"), "http://slow": 600.0})
    await asyncio.wait_for(failure(UrlImageSource("http://gone"), UrlImageSource("http://slow"), fetcher=shelf), HANG_S)
    assert (shelf.cancelled, shelf.active) == (["http://slow"], 0)


async def test_a_cancelled_request_leaves_no_download_behind() -> None:
    shelf, quota = Shelf({"http://slow": 600.0}), ImageQuota()
    task = asyncio.create_task(resolve(UrlImageSource("http://slow"), fetcher=shelf, quota=quota))
    await until(lambda: shelf.active)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (shelf.cancelled, shelf.active, quota.image_count()) == (["http://slow"], 0, 0)


def test_the_library_resolver_is_synchronous_and_works_inside_a_running_loop() -> None:
    resolver, quota = ImageResolver(ReqwestImageFetcher(), OpenCvImagePreprocessor()), ImageQuota()

    async def inside() -> int:
        return resolver.resolve([inline(PNG)], quota).image_token_adjustment()

    assert resolver.resolve((inline(PNG),), quota).image_token_adjustment() == asyncio.run(inside()) == 193
    assert (quota.image_count(), quota.byte_size()) == (2, 2 * len(PNG))
    assert resolver.resolve([], quota).is_empty()


def test_arguments_of_the_wrong_type_are_refused() -> None:
    resolver = ImageResolver(ReqwestImageFetcher(), OpenCvImagePreprocessor())
    for call in (
        lambda: ImageResolver(5, OpenCvImagePreprocessor()),  # type: ignore[arg-type]
        lambda: ImageResolver(ReqwestImageFetcher(), 5),  # type: ignore[arg-type]
        lambda: resolver.resolve([5], ImageQuota()),  # type: ignore[list-item]
        lambda: resolver.resolve(5, ImageQuota()),  # type: ignore[arg-type]
        lambda: resolver.resolve([], 5),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            call()
