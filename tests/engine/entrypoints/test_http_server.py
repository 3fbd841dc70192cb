"""The HTTP door over a real socket: routes, envelopes, body limits. No model and no workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from aiohttp import ClientSession, web

from engine.backend import EngineDeadError, EngineError, RequestRefusedError
from engine.entrypoints.errors import ApiError, anthropic_envelope
from engine.entrypoints.http_server import HttpServer, Route, RouteTable, json_response, read_body
from tests.lived_time import HANG_S

MAX_BODY = 2 << 20
FAILURES = {
    "refused": RequestRefusedError("max_tokens is too large"),
    "dead": EngineDeadError("gone"),
    "engine": EngineError("row 3 has no token"),
    "bug": KeyError("secret prompt text"),
    "long": ApiError(400, "x" * 100_000, param="messages"),
}


async def echo_size(request: web.BaseRequest, request_id: str) -> web.StreamResponse:
    body = await read_body(request, MAX_BODY, 1.0)
    return json_response(b'{"size": %d}' % len(body), request_id)


async def fail(request: web.BaseRequest, request_id: str) -> web.StreamResponse:
    raise FAILURES[request.path.rsplit("/", 1)[1]]


ROUTES = {
    ("POST", "/size"): Route(echo_size),
    ("GET", "/fail/*"): Route(fail),
    ("GET", "/fail-anthropic/*"): Route(fail, anthropic_envelope),
    ("GET", "/size"): Route(echo_size),
}


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    runner = web.ServerRunner(HttpServer(RouteTable(ROUTES), max_body_bytes=MAX_BODY).server())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest_asyncio.fixture
async def client() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def raw(url: str, data: bytes, *, then: bytes = b"") -> bytes:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    first = await asyncio.wait_for(reader.read(4096), HANG_S)
    if then:
        writer.write(then)
        first += await asyncio.wait_for(reader.read(4096), HANG_S)
    writer.close()
    return first


async def test_a_query_string_or_a_trailing_slash_never_breaks_a_route(url: str, client: ClientSession) -> None:
    for path in ("/size", "/size?beta=true&x=%20", "/size/"):
        async with client.post(url + path, data=b"abc") as response:
            assert await response.json() == {"size": 3}


async def test_an_unknown_path_and_a_wrong_method_are_json(url: str, client: ClientSession) -> None:
    async with client.get(url + "/nowhere") as response:
        assert response.status == 404
        assert (await response.json())["error"]["type"] == "not_found_error"
    async with client.delete(url + "/size") as response:
        assert response.status == 405
        assert "POST" in (await response.json())["error"]["message"]


async def test_head_and_options_answer(url: str, client: ClientSession) -> None:
    async with client.head(url + "/size") as response:
        assert response.status == 200
    async with client.options(url + "/size") as response:
        assert response.status == 204 and "POST" in response.headers["Allow"]


async def test_a_body_over_the_limit_is_a_413_whether_or_not_it_says_its_length(
    url: str, client: ClientSession
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 100_000

    async with client.post(url + "/size", data=b"x" * (MAX_BODY + 1)) as response:
        assert response.status == 413
        assert str(MAX_BODY) in (await response.json())["error"]["message"]
    async with client.post(url + "/size", data=pieces()) as response:
        assert response.status == 413


async def test_a_body_over_aiohttps_default_limit_but_under_ours_is_read(url: str, client: ClientSession) -> None:
    async with client.post(url + "/size", data=b"x" * (MAX_BODY - 1)) as response:
        assert await response.json() == {"size": MAX_BODY - 1}


async def test_expect_100_continue_is_answered_before_the_body_is_sent(url: str) -> None:
    head = b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    answer = await raw(url, head, then=b"abc")
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")


async def test_a_body_that_does_not_arrive_is_a_408(url: str) -> None:
    answer = await raw(url, b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\nabc")
    assert b" 408 " in answer.split(b"\r\n")[0] and b"timeout_error" in answer


async def test_failures_map_to_one_status_each_and_tell_no_internals(url: str, client: ClientSession) -> None:
    statuses = {"refused": 400, "dead": 503, "engine": 500, "bug": 500, "long": 400}
    for name, status in statuses.items():
        async with client.get(f"{url}/fail/{name}") as response:
            assert response.status == status
            text = await response.text()
            assert "secret" not in text and "Traceback" not in text and len(text) < 4000
            assert (await response.json())["error"]["message"]
    async with client.get(f"{url}/fail/dead") as response:
        assert int(response.headers["Retry-After"]) >= 1


async def test_a_route_of_the_other_protocol_fails_in_its_own_envelope(url: str, client: ClientSession) -> None:
    async with client.get(f"{url}/fail-anthropic/refused") as response:
        body = await response.json()
        assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
        assert body["request_id"] == response.headers["request-id"]


async def test_a_usable_request_id_is_kept_and_a_hostile_one_replaced(url: str, client: ClientSession) -> None:
    async with client.post(url + "/size", data=b"", headers={"x-request-id": "mine-1"}) as response:
        assert response.headers["x-request-id"] == "mine-1"
    async with client.post(url + "/size", data=b"", headers={"x-request-id": "x" * 500}) as response:
        assert response.headers["x-request-id"].startswith("req_")


async def test_malformed_http_is_a_json_400_and_not_a_traceback(url: str) -> None:
    for data in (b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n"):
        answer = await raw(url, data)
        assert (
            b" 400 " in answer.split(b"\r\n")[0] and b"invalid_request_error" in answer and b"Traceback" not in answer
        )
