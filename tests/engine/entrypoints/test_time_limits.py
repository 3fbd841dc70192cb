"""Every limit over a socket: its status and code before the first byte, its error event after it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from engine.backend import DeadlineExceededError, EngineDeadError
from tests.engine.entrypoints.harness import BODIES, Door, ScriptedBackend, chat, json_chat, open_door
from tests.lived_time import HANG_S, until

CHAT = "/v1/chat/completions"


async def post(door: Door, path: str, body: Any, **headers: str) -> tuple[int, str, Any]:
    async with aiohttp.ClientSession() as session, session.post(door.url + path, json=body, headers=headers) as answer:
        return answer.status, await answer.text(), answer.headers


@pytest.mark.parametrize(
    ("slow", "limit", "status", "code"),
    [
        ({"ready_s": 9.0}, "queue_timeout_s", 503, "queue_timeout"),
        ({"first_s": 9.0}, "first_token_timeout_s", 504, "first_token_timeout"),
        ({"ready_s": 9.0}, "request_timeout_s", 504, "request_timeout"),
        ({"tokens": 99, "gap_s": 0.05}, "request_timeout_s", 504, "request_timeout"),
        ({"compile_s": 9.0}, "compile_timeout_s", 504, "compile_timeout"),
    ],
)
async def test_a_limit_before_the_first_byte_is_a_status(slow: Any, limit: str, status: int, code: str) -> None:
    async with open_door(ScriptedBackend(**slow), **{limit: 0.2}) as door:
        told, text, _ = await post(door, CHAT, json_chat())
        assert told == status and json.loads(text)["error"]["code"] == code
        assert "0.2 s" in text
        assert await until(door.is_idle) < 0.2


async def test_waiting_for_a_worker_has_a_limit_too() -> None:
    async with open_door(prepare_timeout_s=0.1) as door:
        door.pool.gate.clear()
        status, text, _ = await post(door, CHAT, chat())
        assert status == 504 and json.loads(text)["error"]["code"] == "preparation_timeout"
        assert await until(door.is_idle) < 0.2


async def test_a_body_that_does_not_arrive_is_a_408_and_gives_its_permit_back() -> None:
    async with open_door(body_timeout_s=0.2) as door:
        reader, writer = await asyncio.open_connection(*door.address)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\nabc".encode())
        answer = await asyncio.wait_for(reader.read(4096), HANG_S)
        assert answer.startswith(b"HTTP/1.1 408") and b"body_timeout" in answer
        await until(door.is_idle)
        writer.close()


@pytest.mark.parametrize("beginning", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_headers_that_do_not_arrive_are_a_408(beginning: bytes) -> None:
    async with open_door(headers_timeout_s=0.2) as door:
        reader, writer = await asyncio.open_connection(*door.address)
        writer.write(beginning)
        answer = await asyncio.wait_for(reader.read(), HANG_S)
        assert answer.startswith(b"HTTP/1.1 408") and b"headers_timeout" in answer
        writer.close()


async def test_trickling_headers_of_a_later_request_are_cut_too_and_an_idle_connection_is_not() -> None:
    async with open_door(headers_timeout_s=0.2) as door:
        reader, writer = await asyncio.open_connection(*door.address)
        request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(request)
        assert (await reader.read(4096)).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(0.4)
        writer.write(request)
        assert (await reader.read(4096)).startswith(b"HTTP/1.1 200")
        answer = asyncio.ensure_future(asyncio.wait_for(reader.read(4096), HANG_S))
        writer.write(b"GET /")
        while not answer.done():
            writer.write(b"x")
            await asyncio.wait((answer,), timeout=0.05)
        assert (await answer).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_headers_over_the_limit_are_refused() -> None:
    async with open_door(max_header_kib=1) as door:
        for line in (b"X-Long: " + b"x" * 2000, b"\r\n".join(b"X-%d: y" % i for i in range(150))):
            reader, writer = await asyncio.open_connection(*door.address)
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n" + line + b"\r\n\r\n")
            assert b" 400 " in (await asyncio.wait_for(reader.read(4096), HANG_S)).split(b"\r\n")[0]
            writer.close()


def last_event(text: str) -> tuple[str, Any]:
    """The name and the data of a stream's last event."""
    lines = [line for line in text.split("\n") if line.startswith(("event: ", "data: "))]
    name = lines[-2].removeprefix("event: ") if lines[:-1] and lines[-2].startswith("event: ") else ""
    return name, json.loads(lines[-1].removeprefix("data: "))


async def test_each_protocol_ends_a_broken_stream_with_an_error_event_of_its_own() -> None:
    async with open_door(ScriptedBackend(tokens=9, gap_s=9.0), token_gap_timeout_s=0.2) as door:
        for path, body in BODIES.items():
            status, text, _ = await post(door, path, body | {"stream": True})
            assert status == 200 and "word" in text and "[DONE]" not in text
            name, data = last_event(text)
            if path.endswith("messages"):
                assert name == "error" and data["error"]["type"] == "timeout_error" and data["request_id"]
            elif path.endswith("responses"):
                assert name == data["type"] == "response.failed"
                created = json.loads(text.split("data: ")[1].split("\n")[0])["response"]
                assert data["response"]["id"] == created["id"] and data["response"]["status"] == "failed"
                assert data["response"]["error"]["code"] == "server_error"
                assert data["sequence_number"] == text.count("data: ") - 1
            else:
                assert data["error"]["code"] == "token_gap_timeout"


async def post_and_wait_for(door: Door, path: str, body: Any, filler: str, times: int) -> str:
    """The text of a stream whose backend begins when that many fillers have been read."""
    door.backend.gate.clear()
    async with (
        aiohttp.ClientSession() as session,
        session.post(door.url + path, json=body | {"stream": True}) as answer,
        asyncio.timeout(HANG_S),
    ):
        assert answer.status == 200
        text = ""
        while text.count(filler) < times:
            text += (await answer.content.readany()).decode()
        door.backend.gate.set()
        return text + await answer.text()


async def test_silence_is_filled_with_what_no_client_takes_for_an_event() -> None:
    async with open_door(ping_interval_s=0.1) as door:
        for path, body in BODIES.items():
            filler = 'event: ping\ndata: {"type":"ping"}' if path.endswith("messages") else ": keep-alive"
            text = await post_and_wait_for(door, path, body, filler, times=2)
            events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
            assert events and "word" in text


async def test_an_error_after_a_keep_alive_is_an_event_in_every_protocol() -> None:
    async with open_door(ScriptedBackend(error=EngineDeadError("gone"), tokens=0), ping_interval_s=0.1) as door:
        for path, body in BODIES.items():
            text = await post_and_wait_for(door, path, body, "ping" if path.endswith("messages") else "alive", times=1)
            _, data = last_event(text)
            assert "error" in data or data["response"]["status"] == "failed"


async def test_the_engine_is_told_the_deadline_and_its_own_error_is_the_same_one() -> None:
    backend = ScriptedBackend(tokens=1, error=DeadlineExceededError("the deadline passed"))
    async with open_door(backend, request_timeout_s=50.0) as door:
        status, text, _ = await post(door, CHAT, chat())
        assert status == 504 and json.loads(text)["error"]["code"] == "request_timeout"
        assert backend.requests[0].deadline is not None
    async with open_door() as door:
        await post(door, CHAT, chat())
        assert door.backend.requests[0].deadline is None


async def test_the_death_of_the_engine_reaches_whoever_waits_and_whoever_comes_later() -> None:
    backend = ScriptedBackend(tokens=3, gap_s=0.01, error=EngineDeadError("gone"))
    async with open_door(backend) as door:
        results = await asyncio.gather(*(post(door, CHAT, chat()) for _ in range(5)))
        assert {status for status, _, _ in results} == {503}
        assert all(int(headers["Retry-After"]) >= 1 and "gone" not in text for _, text, headers in results)
        backend.is_ok = False
        async with aiohttp.ClientSession() as session, session.get(door.url + "/health") as health:
            assert health.status == 503 and (await health.json())["status"] == "unavailable"
