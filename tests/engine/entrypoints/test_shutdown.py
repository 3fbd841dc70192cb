"""The way out: streams finish, or end with an error event; a second signal hurries; a dead engine ends the program."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import aiohttp

from engine.entrypoints.lifecycle import create_server
from engine.entrypoints.options import ServerOptions
from engine.entrypoints.shutdown import ENGINE_DEATH_EXIT_CODE, StopSignals, drain
from tests.engine.entrypoints.conftest import ROOT, Program, start_program
from tests.engine.entrypoints.harness import Door, ScriptedBackend, chat, open_door
from tests.engine.runner.small_models import make_reference, save_directory
from tests.lived_time import HANG_S, until

CHAT = "/v1/chat/completions"


async def stream(door: Door) -> str:
    async with aiohttp.ClientSession() as session, session.post(door.url + CHAT, json=chat(stream=True)) as answer:
        return await answer.text()


async def drained(door: Door, hurry: asyncio.Event, drain_s: float) -> float:
    loop = asyncio.get_running_loop()
    started = loop.time()
    await drain(door.desk.admission, door.desk.clock, hurry, drain_s)
    return loop.time() - started


async def test_what_is_open_finishes_within_the_drain_and_what_comes_is_refused() -> None:
    async with open_door(ScriptedBackend(tokens=10, gap_s=0.03)) as door:
        open_stream = asyncio.ensure_future(stream(door))
        await until(lambda: bool(door.backend.open))
        draining = asyncio.ensure_future(drained(door, asyncio.Event(), 60))
        await asyncio.sleep(0)
        assert "shutting_down" in await stream(door)
        assert (await open_stream).endswith("data: [DONE]\n\n")
        assert await draining < 20


async def test_what_does_not_finish_ends_with_an_error_event() -> None:
    async with open_door(ScriptedBackend(tokens=10**6, gap_s=0.01)) as door:
        open_stream = asyncio.ensure_future(stream(door))
        await until(lambda: bool(door.backend.open))
        assert 0.2 <= await drained(door, asyncio.Event(), 0.2) < 5
        last = (await open_stream).strip().split("data: ")[-1]
        assert json.loads(last)["error"]["code"] == "shutting_down"
        await until(door.is_idle)


async def test_a_second_signal_ends_the_drain_at_once() -> None:
    signals = StopSignals()
    signals.on_signal()
    assert signals.stop.is_set() and not signals.hurry.is_set()
    async with open_door(ScriptedBackend(tokens=10**6, gap_s=0.01)) as door:
        open_stream = asyncio.ensure_future(stream(door))
        await until(lambda: bool(door.backend.open))
        asyncio.get_running_loop().call_later(0.1, signals.on_signal)
        assert await drained(door, signals.hurry, 60) < 20
        assert "shutting_down" in await open_stream


async def read_stream(program: Program) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 8000}
    async with aiohttp.ClientSession() as session, session.post(program.url + CHAT, json=body) as answer:
        text = b""
        async for piece in answer.content.iter_any():
            if not text:
                program.process.send_signal(signal.SIGTERM)
            text += piece
        return text.decode()


async def test_a_terminated_program_ends_its_streams_properly_and_with_0() -> None:
    program = start_program(
        "--backend", "mock", "--mock-rate", "50", "--mock-tokens", "8000", "--drain-seconds", "1",
        "--served-model-name", "m",
    )  # fmt: skip
    text = await asyncio.wait_for(read_stream(program), HANG_S)
    assert "shutting_down" in text and "[DONE]" not in text
    assert await asyncio.to_thread(program.process.wait, HANG_S) == 0


async def post_to(url: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url + CHAT, json=chat()) as answer:
        return answer.status, await answer.json()


async def test_the_death_of_the_engine_reaches_everybody_and_ends_the_program_with_its_code(tmp_path: Path) -> None:
    model = str(save_directory(make_reference(), tmp_path))
    options = ServerOptions(
        model=model, port=0, workers=1, device="cpu", kv_cache_mib=4, threads=1, served_model_name=["m"], warmup="none"
    )
    signals = StopSignals()
    async with create_server(options, signals) as server:
        all_wait = threading.Event()

        def die() -> None:
            all_wait.wait(2 * HANG_S)
            raise RuntimeError("out of memory at 0x7f00")

        await server.backend.call(lambda core: setattr(core, "step", die))  # type: ignore[attr-defined]
        waiting = [asyncio.ensure_future(post_to(server.address)) for _ in range(3)]
        await until(lambda: server.desk.admission.num_open == 3)
        all_wait.set()
        for status, body in [*await asyncio.gather(*waiting), await post_to(server.address)]:
            assert status == 503 and body["error"]["code"] == "engine_dead" and "0x7f00" not in str(body)
        async with aiohttp.ClientSession() as session, session.get(server.address + "/health") as answer:
            assert answer.status == 503
        await asyncio.wait_for(signals.stop.wait(), HANG_S)
        assert signals.exit_code == ENGINE_DEATH_EXIT_CODE


def test_a_program_whose_closing_hangs_ends_all_the_same() -> None:
    code = "from engine.entrypoints.shutdown import end_for_certain as end; import time; end(0.2, 3); time.sleep(600)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 3 and "longer than 0.2 s" in done.stderr


def test_a_program_that_closes_in_time_ends_with_its_own_code() -> None:
    code = "from engine.entrypoints.shutdown import end_for_certain as end; end(600, 3).cancel()"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120, check=False).returncode == 0
