"""Strangers' URLs against a server on loopback.

Two servers run: the origin on 127.0.0.1, which the policy of these tests takes for a public address, and a trap on
127.0.0.2, which stands for everything that must not be reached.
"""

import asyncio
import gzip
import re
import zlib
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from recipe.conversation import UrlImageSource
from recipe.image import (
    ImageError,
    ImagePolicy,
    ImageQuota,
    MultiModalData,
    ReqwestImageFetcher,
    image_error_status,
    resolve_images,
)
from recipe.image.fetcher import FetchRules, PolicyImageFetcher, download
from tests.lived_time import HANG_S
from tests.recipe.image.origin import (
    Names,
    Origin,
    dripping,
    dripping_head,
    endless,
    raw,
    redirect,
    reply,
    silent,
)
from tests.recipe.image.pictures import PNG, golden, png_claiming

TIMEOUT_S = 0.6
PLACE = "messages.0.content[1]"
GIF_SCRIPT = b"GIF89a\x0a\0\x0a\0" + b"=1;alert(1)//"


class TestPolicy(ImagePolicy):
    """The policy of a server, for which 127.0.0.1 is somebody on the internet."""

    __test__ = False

    def admits_address(self, address: str) -> bool:
        return address == "127.0.0.1" or super().admits_address(address)


POLICY = TestPolicy(max_image_bytes=200_000, image_timeout_s=TIMEOUT_S)

ANSWERS = {
    "/ok": reply(PNG),
    "/untyped": reply(PNG, "application/octet-stream"),
    "/loop": redirect("/loop"),
    "/nowhere": raw(b"HTTP/1.1 302 x\r\nContent-Length: 0\r\n\r\n"),
    "/silent": silent,
    "/drip": dripping,
    "/drip-head": dripping_head,
    "/endless": endless,
    "/large": reply(b"\x89PNG" + b"x" * 200_000),
    "/claims-large": reply(PNG, length=10**12),
    "/short": reply(PNG, length=len(PNG) + 100),
    "/negative": reply(PNG, length=-1),
    "/gzip-bomb": reply(gzip.compress(b"\0" * 5_000_000), headers="Content-Encoding: gzip\r\n"),
    "/deflate-bomb": reply(zlib.compress(b"\0" * 5_000_000), headers="Content-Encoding: deflate\r\n"),
    "/svg": reply(b'<svg xmlns="http://www.w3.org/2000/svg"/>', "image/svg+xml"),
    "/svg-as-png": reply(b'<svg xmlns="http://www.w3.org/2000/svg"/>'),
    "/html": reply(b"<html>", "text/html"),
    "/png-as-html": reply(PNG, "text/html"),
    "/png-as-jpeg": reply(PNG, "image/jpeg"),
    "/pdf": reply(b"%PDF-1.7", "application/pdf"),
    "/empty": reply(b""),
    "/no-content": reply(b"", status=204),
    "/truncated": reply(PNG[: len(PNG) // 2]),
    "/truncated-jpeg": reply(golden("truncated.jpg"), "image/jpeg"),
    "/bomb": reply(png_claiming(60_000, 60_000)),
    "/gif-script": reply(GIF_SCRIPT, "image/gif"),
    "/png-zip": reply(PNG + b"PK\x03\x04" + b"\0" * 50),
    "/bmp": reply(golden("rgb_100x80.bmp"), "image/bmp"),
    "/teapot": reply(b"x", status=418),
    "/unauthorized": reply(b"x", status=401),
    "/broken": reply(b"x", status=500),
    "/busy": reply(b"x", status=503),
    "/not-http": raw(b"SSH-2.0-OpenSSH_9\r\n"),
    "/nothing": raw(b""),
    "/huge-header": raw(b"HTTP/1.1 200 x\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"),
    "/bad-chunk": raw(b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx"),
}

NAMES = {
    "public.example": [["127.0.0.1"]],
    "xn--bcher-kva.example": [["127.0.0.2"]],
    "inside.example": [["127.0.0.2"]],
    "inside6.example": [["::1"]],
    "mapped.example": [["::ffff:127.0.0.2"]],
    "ten.example": [["10.0.0.1", "192.168.0.1", "fd00::1"]],
    "metadata.google.internal": [["169.254.169.254"]],
    "localhost": [["127.0.0.2", "::1"]],
    "scoped.example": [["fe80::1%eth0"]],
    "mixed.example": [["127.0.0.2", "127.0.0.1"]],
    "rebinding.example": [["127.0.0.1"], ["127.0.0.2"]],
    "nonsense.example": [["not an address"]],
    "void.example": [[]],
}

# URL (with {port} of the origin, {trap} of the trap), kind of the error, HTTP status
HOSTILE = [
    *(
        (f"http://{host}/secret", "DestinationRejected", 400)
        for host in (
            "127.0.0.2:{trap}", "2130706434:{trap}", "0x7f000002:{trap}", "0x7F.0.0.2:{trap}", "017700000002:{trap}",
            "0177.0.0.02:{trap}", "127.2:{trap}", "127.0.2:{trap}", "127.0.0.2.:{trap}", "%31%32%37.0.0.2:{trap}",
            "１２７.0.0.2:{trap}", "127。0。0。2:{trap}", "①27.0.0.2:{trap}", "[::ffff:127.0.0.2]:{trap}",
            "[::ffff:7f00:2]:{trap}", "[64:ff9b::7f00:2]:{trap}", "[2002:7f00:2::]:{trap}", "[::127.0.0.2]:{trap}",
            "[::1]:{trap}", "[::]:{trap}", "0.0.0.0:{trap}", "0:{trap}", "10.0.0.1", "172.16.0.1", "192.168.0.1",
            "100.64.0.1", "169.254.169.254", "0xa9fea9fe", "[::ffff:a9fe:a9fe]", "[fd00:ec2::254]", "[fe80::1]",
            "[ff02::1]", "224.0.0.1", "255.255.255.255", "100.100.100.200", "inside.example:{trap}",
            "INSIDE.Example:{trap}", "inside.example.:{trap}", "inside6.example:{trap}", "mapped.example:{trap}",
            "ten.example", "metadata.google.internal", "localhost:{trap}", "LOCALHOST:{trap}", "scoped.example",
            "bücher.example:{trap}", "user:word@127.0.0.1:{port}", "user@public.example:{port}",
            "public.example@127.0.0.2:{trap}", "127.0.0.1:{port}@127.0.0.2:{trap}",
        )
    ),
    ("http:\\\\127.0.0.2:{trap}\\secret", "DestinationRejected", 400),
    ("hTTp:127.0.0.2:{trap}/secret", "DestinationRejected", 400),
    ("http://127.0.0.2:{trap}\\@public.example/secret", "DestinationRejected", 400),
    ("http://127.0.0.2:{trap}#@public.example/secret", "DestinationRejected", 400),
    ("http://public.example:{port}/to?http://127.0.0.2:{trap}/secret", "DestinationRejected", 400),
    ("http://127.0.0.1:{port}/to?//127.0.0.2:{trap}/secret", "DestinationRejected", 400),
    ("http://127.0.0.1:{port}/to?\\\\2130706434:{trap}/secret", "DestinationRejected", 400),
    ("http://127.0.0.1:{port}/to?http://169.254.169.254/latest/meta-data/", "DestinationRejected", 400),
    ("http://127.0.0.1:{port}/to?http://inside.example:{trap}/secret", "DestinationRejected", 400),
    ("http://127.0.0.1:{port}/to?/to%3Fhttp://127.0.0.2:{trap}/secret", "DestinationRejected", 400),
    ("http://127.0.0.1:{port}/to?http://user@127.0.0.1:{port}/ok", "DestinationRejected", 400),
    ("http://rebinding.example:{port}/to?http://rebinding.example:{trap}/secret", "DestinationRejected", 400),
    ("http://127.0.0.1:{port}/to?file:///etc/passwd", "FetchStatus", 400),
    ("http://127.0.0.1:{port}/to?data:image/png;base64,AAAA", "FetchStatus", 400),
    ("http://127.0.0.1:{port}/to?gopher://127.0.0.2:{trap}/secret", "Fetch", 500),
    ("http://127.0.0.1:{port}/to?http://never.example/", "Fetch", 500),
    *((url, "InvalidUrl", 400) for url in (
        "ftp://public.example/", "file:///etc/passwd", "gopher://127.0.0.2:{trap}/secret", "javascript:x", "", " http://a/",
        "http://", "http://a b/", "http://256.0.0.1/", "http://1.2.3.4.5/", "http://[::1", "http://[fe80::1%25eth0]/",
        "http://a:99999/", "http://a%00.example/", "httpx://127.0.0.2:{trap}/secret",
    )),
    ("http://127.0.0.1:{port}/" + "a" * 9000, "UrlTooLong", 400),
    *((f"http://127.0.0.1:{{port}}/{path}", kind, status) for path, kind, status in (
        ("missing", "FetchStatus", 400), ("teapot", "FetchStatus", 400), ("unauthorized", "FetchStatus", 400),
        ("nowhere", "FetchStatus", 400), ("broken", "FetchStatus", 500), ("busy", "FetchStatus", 500),
        ("loop", "Fetch", 500), ("silent", "Fetch", 500), ("drip", "Fetch", 500), ("drip-head", "Fetch", 500),
        ("short", "Fetch", 500), ("negative", "Fetch", 500), ("not-http", "Fetch", 500), ("nothing", "Fetch", 500),
        ("huge-header", "Fetch", 500), ("bad-chunk", "Fetch", 500),
        ("endless", "ImageTooLarge", 400), ("large", "ImageTooLarge", 400), ("claims-large", "ImageTooLarge", 400),
        ("gzip-bomb", "UnsupportedMediaType", 400), ("deflate-bomb", "UnsupportedMediaType", 400),
        ("svg", "UnsupportedMediaType", 400), ("svg-as-png", "UnsupportedMediaType", 400),
        ("html", "UnsupportedMediaType", 400), ("png-as-html", "UnsupportedMediaType", 400),
        ("png-as-jpeg", "UnsupportedMediaType", 400), ("pdf", "UnsupportedMediaType", 400),
        ("bmp", "UnsupportedMediaType", 400), ("empty", "UnsupportedMediaType", 400),
        ("no-content", "UnsupportedMediaType", 400), ("truncated", "EmptyImage", 400),
        ("truncated-jpeg", "EmptyImage", 400), ("bomb", "ImageDimensionsTooLarge", 400), ("gif-script", "Decode", 400),
    )),
    ("http://unknown.example/", "Fetch", 500),
    ("http://never.example/", "Fetch", 500),
    ("http://void.example/", "Fetch", 500),
    ("http://nonsense.example/", "Fetch", 500),
]  # fmt: skip


@pytest_asyncio.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin("127.0.0.1", ANSWERS).running() as server:
        yield server


@pytest_asyncio.fixture
async def trap() -> AsyncIterator[Origin]:
    async with Origin("127.0.0.2", {"/secret": reply(PNG)}).running() as server:
        yield server


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every address that a connection was attempted to."""
    addresses: list[str] = []
    original = asyncio.selector_events.BaseSelectorEventLoop.sock_connect

    def recording(loop: Any, sock: Any, address: Any) -> Any:
        addresses.append(address[0])
        return original(loop, sock, address)

    monkeypatch.setattr(asyncio.selector_events.BaseSelectorEventLoop, "sock_connect", recording)
    yield addresses


async def resolve(url: str, policy: ImagePolicy = POLICY, names: Names | None = None) -> MultiModalData:
    fetcher = PolicyImageFetcher(policy, names or Names(NAMES))
    return await resolve_images([UrlImageSource(url, path=PLACE)], ImageQuota(), fetcher=fetcher, policy=policy)


@pytest.mark.parametrize(("url", "kind", "status"), HOSTILE, ids=[str(place) for place in range(len(HOSTILE))])
async def test_a_hostile_url_reaches_nothing_refused_and_ends_in_time(
    url: str, kind: str, status: int, origin: Origin, trap: Origin, connected: list[str]
) -> None:
    with pytest.raises(ImageError) as error:
        url = url.replace("{port}", str(origin.port)).replace("{trap}", str(trap.port))
        await asyncio.wait_for(resolve(url), HANG_S)
    assert (error.value.kind, image_error_status(error.value)) == (kind, status)
    assert str(error.value).startswith(PLACE)
    assert trap.requests == []
    assert set(connected) <= {"127.0.0.1"}


def test_the_battery_is_as_large_as_it_should_be() -> None:
    assert len({url for url, _, _ in HOSTILE}) == len(HOSTILE) >= 120


@pytest.mark.parametrize("path", ["/ok", "/untyped", "/png-zip", "/to?/ok", "/to?//public.example:{port}/to%3F/ok"])
async def test_a_decent_url_is_fetched(path: str, origin: Origin) -> None:
    data = await resolve(f"http://public.example:{origin.port}{path}".replace("{port}", str(origin.port)))
    assert (data.images[0].width, data.images[0].height) == (630, 476)


async def test_the_connection_goes_to_the_address_that_was_checked(
    origin: Origin, trap: Origin, connected: list[str]
) -> None:
    names = Names({"rebinding.example": [["127.0.0.1"], ["127.0.0.2"]]})
    await resolve(f"http://rebinding.example:{origin.port}/ok", names=names)
    assert names.look_ups == ["rebinding.example"]
    assert connected == ["127.0.0.1"]


async def test_of_several_addresses_only_the_admitted_are_used(origin: Origin, connected: list[str]) -> None:
    await resolve(f"http://mixed.example:{origin.port}/ok")
    assert connected == ["127.0.0.1"]


async def test_every_hop_is_looked_up_and_checked_again(origin: Origin) -> None:
    names = Names(NAMES)
    url = f"http://public.example:{origin.port}/to?http://public.example.:{origin.port}/ok"
    await resolve(url, names=names)
    assert names.look_ups == ["public.example", "public.example."]


async def test_private_addresses_can_be_allowed(trap: Origin) -> None:
    policy = ImagePolicy(allow_private_images=True)
    assert not (await resolve(f"http://inside.example:{trap.port}/secret", policy)).is_empty()
    assert trap.requests == ["/secret"]


async def test_hosts_can_be_limited_and_urls_forbidden(origin: Origin) -> None:
    for policy in (TestPolicy(allow_image_hosts=("other.example",)), TestPolicy(no_image_urls=True)):
        with pytest.raises(ImageError) as error:
            await resolve(f"http://public.example:{origin.port}/ok", policy)
        assert error.value.kind == "DestinationRejected"
    assert origin.requests == []


async def test_no_proxy_of_the_environment_is_used(
    origin: Origin, trap: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.2:{trap.port}")
    await resolve(f"http://public.example:{origin.port}/ok")
    assert trap.requests == []


async def test_an_endless_body_is_read_only_up_to_the_limit(origin: Origin) -> None:
    with pytest.raises(ImageError) as error:
        await resolve(f"http://public.example:{origin.port}/endless")
    assert error.value.kind == "ImageTooLarge", "and not that the time was over"


async def test_a_filter_that_errs_or_does_not_say_true_rejects(origin: Origin) -> None:
    def failing(host: str, address: str) -> bool:
        raise RuntimeError

    for answer in (failing, lambda host, address: 1, lambda host, address: None):
        fetcher = ReqwestImageFetcher().with_destination_filter(answer)  # type: ignore[arg-type]
        with pytest.raises(ImageError) as error:
            await asyncio.to_thread(fetcher.fetch, f"http://127.0.0.1:{origin.port}/ok")
        assert (error.value.kind, error.value.is_retryable) == ("DestinationRejected", False)
    assert origin.requests == []


async def test_the_library_fetcher_works_with_and_without_a_running_loop(origin: Origin) -> None:
    url = f"http://127.0.0.1:{origin.port}/html"
    assert await asyncio.to_thread(ReqwestImageFetcher().fetch, url) == b"<html>"
    assert await ReqwestImageFetcher().download(url) == b"<html>"


async def test_the_user_of_a_url_is_told_to_its_origin_and_to_no_other(origin: Origin, trap: Origin) -> None:
    fetcher = ReqwestImageFetcher()
    for user_info in ("b%C3%BCcher:%40%3A", "b%C3%BCcher"):
        await fetcher.download(f"http://{user_info}@127.0.0.1:{origin.port}/to?/html")
    await fetcher.download(f"http://user:word@127.0.0.1:{origin.port}/to?http://127.0.0.2:{trap.port}/secret")
    told = [re.findall(r"Authorization: Basic (\S+)", head) for head in [*origin.heads, *trap.heads]]
    assert [b64decode(one[0]).decode() if one else None for one in told] == [
        "bücher:@:", "bücher:@:", "bücher:", "bücher:", "user:word", None,
    ]  # fmt: skip


async def test_five_redirects_are_followed_and_no_sixth(origin: Origin) -> None:
    rules = FetchRules(max_bytes=100_000, timeout_s=HANG_S)
    with pytest.raises(Exception, match="Failed to download"):
        await download(f"http://127.0.0.1:{origin.port}/loop", rules)
    assert origin.requests == ["/loop"] * 6
