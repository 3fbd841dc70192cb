"""What the engine is told of a request, and what it tells, over a whole server with a small model in this process."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine.backend import EngineRequest
from engine.entrypoints import lifecycle
from engine.entrypoints.auth import ApiKey
from engine.entrypoints.generation import cache_salt
from engine.entrypoints.lifecycle import Server, create_server
from engine.entrypoints.options import ServerOptions
from engine.entrypoints.statistics import log_statistics
from tests.engine.runner.small_models import make_reference, save_directory
from tests.lived_time import HANG_S, until


def options_of(folder: Path, **settings: Any) -> ServerOptions:
    return ServerOptions(
        model=str(save_directory(make_reference(), folder)), port=0, workers=1, device="cpu", kv_cache_mib=4,
        threads=1, served_model_name=["small"], api_key=["first", "second"], prefix_cache_per_key=True, **settings,
    )  # fmt: skip


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with create_server(options_of(tmp_path)) as server:
        yield server


async def ask(server: Server, key: str = "first", **body: Any) -> Any:
    messages = [{"role": "user", "content": "x" * 60}]
    document = {"model": "small", "messages": messages, "temperature": 0, **body}
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session,
        session.post(f"{server.address}/v1/chat/completions", json=document) as response,
    ):
        assert response.status == 200, await response.text()
        return await response.json()


def at_the_pace_of(loop: asyncio.AbstractEventLoop, step: Callable[[], Any]) -> Callable[[], Any]:
    """`step`, begun only when the event loop has had some turns to take in what came of the last one."""

    def turn(left: int, done: threading.Event) -> None:
        if left:
            loop.call_soon(turn, left - 1, done)
        else:
            done.set()

    def paced() -> Any:
        done = threading.Event()
        loop.call_soon_threadsafe(turn, 20, done)
        done.wait(HANG_S)
        return step()

    return paced


async def test_a_whole_response_stops_at_its_stop_string_and_not_at_its_limit(server: Server) -> None:
    whole = await ask(server, max_tokens=150, ignore_eos=True)
    text = whole["choices"][0]["message"]["content"]
    before, loop = server.backend.stats().completion_tokens, asyncio.get_running_loop()
    await server.backend.call(lambda core: setattr(core, "step", at_the_pace_of(loop, core.step)))  # type: ignore[attr-defined]
    stopped = await ask(server, max_tokens=150, ignore_eos=True, stop=[text[10:13]])
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert text.startswith(stopped["choices"][0]["message"]["content"])
    assert server.backend.stats().completion_tokens - before < 60
    await until(lambda: not server.backend.stats().running)


async def test_keys_that_are_kept_apart_do_not_find_each_others_prompts(server: Server) -> None:
    def hits(answer: Any) -> int:
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert hits(await ask(server, "first", max_tokens=1)) == 0
    assert hits(await ask(server, "first", max_tokens=1)) > 0
    assert hits(await ask(server, "second", max_tokens=1)) == 0


async def test_a_request_is_never_more_urgent_than_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys.toml"
    digest = hashlib.sha256(b"batch").hexdigest()
    keys.write_text(f'[[keys]]\nname = "batch"\nsha256 = "{digest}"\npriority = 2\n', encoding="utf-8")
    async with create_server(options_of(tmp_path, api_keys=str(keys))) as server:
        infer, priorities = server.backend.infer, list[int]()

        def seen(request: EngineRequest) -> Any:
            priorities.append(request.priority)
            return infer(request)

        monkeypatch.setattr(server.backend, "infer", seen)
        for key, asked in (("batch", {}), ("batch", {"priority": -5}), ("batch", {"priority": 7})):
            await ask(server, key, max_tokens=1, **asked)
        for asked in ({}, {"priority": -5}, {"priority": 7}):
            await ask(server, "first", max_tokens=1, **asked)
    assert priorities == [2, 2, 7, 0, 0, 7]


def test_a_salt_is_what_was_asked_for_and_the_key_where_keys_are_kept_apart() -> None:
    one, other = ApiKey("one", b""), ApiKey("other", b"")
    assert cache_salt("", None) == b"" and cache_salt("s", None) == b"s"
    salts = {cache_salt(asked, key) for asked in ("", "s") for key in (one, other, None)}
    assert len(salts) == 6


@pytest.mark.parametrize("disabled", [False, True])
async def test_the_line_of_statistics_runs_with_the_server_unless_it_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disabled: bool
) -> None:
    lines: list[str] = []
    quick = partial(log_statistics, interval_s=0.01)
    monkeypatch.setattr(lifecycle, "log_statistics", lambda stats, write: quick(stats, lines.append))
    async with create_server(options_of(tmp_path, disable_log_stats=disabled)) as server:
        await ask(server, max_tokens=50, ignore_eos=True)
        await (asyncio.sleep(0.05) if disabled else until(lambda: lines))
    assert any("tok/s" in line for line in lines) != disabled
    written = len(lines)
    await asyncio.sleep(0.05)
    assert len(lines) == written
