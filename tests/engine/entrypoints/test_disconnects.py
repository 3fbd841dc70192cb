"""Clients that leave, at whatever point and in whatever way, leave nothing behind; the engine hears at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine.entrypoints.options import ServerOptions
from tests.engine.entrypoints.harness import (
    BODIES,
    Door,
    ScriptedBackend,
    chat,
    json_chat,
    open_door,
    raw_request,
)
from tests.lived_time import HANG_S, turns, until

TOLD_WITHIN_S = 0.1
ENDLESS: dict[str, Any] = {"tokens": 10**6, "gap_s": 0.01}


async def connect(door: Door, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*door.address)
    writer.write(data)
    return reader, writer


def leave(writer: asyncio.StreamWriter, how: str) -> None:
    if how == "half-close":
        writer.write_eof()
    elif how == "reset":
        writer.transport.abort()
    else:
        writer.close()


@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
@pytest.mark.parametrize("path", BODIES)
async def test_leaving_a_stream_frees_it_within_a_tenth_of_a_second(path: str, how: str) -> None:
    async with open_door(ScriptedBackend(**ENDLESS)) as door:
        reader, writer = await connect(door, raw_request(path, BODIES[path] | {"stream": True}))
        await reader.readuntil(b"word")
        leave(writer, how)
        assert await until(door.is_idle) < TOLD_WITHIN_S
        requests = door.desk.telemetry.metrics.requests
        await until(lambda: requests[path_name(path), "disconnected"] == 1)  # the account follows the cleanup


def path_name(path: str) -> str:
    return path.removeprefix("/v1/").replace("/", "_")


@pytest.mark.parametrize("waits", ["queue", "prefill", "decode"])
async def test_leaving_a_whole_response_frees_it_wherever_the_engine_is(waits: str) -> None:
    slow = {"queue": {"ready_s": 60.0}, "prefill": {"first_s": 60.0}, "decode": ENDLESS}[waits]
    async with open_door(ScriptedBackend(**slow)) as door:
        _, writer = await connect(door, raw_request("/v1/chat/completions", chat()))
        await until(lambda: bool(door.backend.open))
        leave(writer, "close")
        assert await until(door.is_idle) < TOLD_WITHIN_S


async def test_leaving_while_the_request_is_prepared_never_reaches_the_engine() -> None:
    async with open_door() as door:
        door.pool.gate.clear()
        _, writer = await connect(door, raw_request("/v1/chat/completions", chat()))
        await until(lambda: door.pool.waiting == 1)
        leave(writer, "close")
        assert await until(door.is_idle) < TOLD_WITHIN_S
        door.pool.gate.set()
        await asyncio.sleep(0.02)
        assert not door.backend.requests


async def test_leaving_while_the_constraint_is_compiled_gives_everything_back() -> None:
    async with open_door(ScriptedBackend(compile_s=60.0)) as door:
        _, writer = await connect(door, raw_request("/v1/chat/completions", json_chat()))
        await until(lambda: door.backend.open == ["compile"])
        leave(writer, "close")
        assert await until(door.is_idle) < TOLD_WITHIN_S


async def test_leaving_in_the_middle_of_a_body_gives_everything_back() -> None:
    async with open_door() as door:
        _, writer = await connect(door, raw_request("/v1/chat/completions", chat())[:-5])
        await until(lambda: door.desk.admission.num_open == 1)
        leave(writer, "close")
        assert await until(door.is_idle) < TOLD_WITHIN_S


async def test_a_reader_that_takes_nothing_is_cut_and_costs_the_others_nothing() -> None:
    backend = ScriptedBackend(tokens=10**6, word="x" * 20_000 + " ", gap_s=0.001)
    async with open_door(backend, send_timeout_s=0.3) as door:
        _, slow = await connect(door, raw_request("/v1/chat/completions", chat(stream=True)))
        reader, quick = await connect(door, raw_request("/v1/chat/completions", chat(stream=True)))
        await until(lambda: len(door.backend.open) == 2)
        received = 0
        async with asyncio.timeout(HANG_S):
            while len(door.backend.open) == 2:
                received += len(await reader.read(1 << 20))
        assert len(door.backend.open) == 1 and received > 1 << 20
        requests = door.desk.telemetry.metrics.requests
        await until(lambda: requests["chat_completions", "slow_reader"] == 1)  # the account follows the cleanup
        slow.transport.abort()
        leave(quick, "close")
        assert await until(door.is_idle) < 1


async def settled(number: Callable[[], int]) -> int:
    """What `number` comes to stay at while everybody else has turns."""
    before = -1
    while (now := number()) != before:
        before = now
        await turns(200)
    return now


async def test_a_reader_that_takes_nothing_holds_a_bounded_amount() -> None:
    backend = ScriptedBackend(tokens=10**6, word="x" * 2000 + " ", gap_s=0.0)
    async with open_door(backend, send_timeout_s=30.0) as door:
        _, writer = await connect(door, raw_request("/v1/chat/completions", chat(stream=True)))
        await until(lambda: bool(door.backend.open))
        (account,) = door.desk.telemetry._open.values()
        async with asyncio.timeout(HANG_S):  # it comes to wait for its reader
            assert 0 < await settled(lambda: account.completion_tokens) < 100_000
        writer.transport.abort()
        await until(door.is_idle)


async def test_many_requests_on_one_connection_leave_nothing_when_it_goes() -> None:
    async with open_door(ScriptedBackend(**ENDLESS)) as door:
        _, writer = await connect(door, raw_request("/v1/chat/completions", chat(stream=True)) * 5)
        await until(lambda: bool(door.backend.open))
        leave(writer, "reset")
        assert await until(door.is_idle) < TOLD_WITHIN_S
        await asyncio.sleep(0.1)
        assert door.is_idle()


def test_the_limits_that_protect_the_server_are_on_by_default() -> None:
    options = ServerOptions()
    for name in ("max_requests", "max_preparing", "max_queued", "max_queued_tokens", "send_timeout_s"):
        assert getattr(options, name) > 0
