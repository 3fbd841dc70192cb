"""Small bodies are prepared on the event loop, without the workers; large ones never are."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from engine.entrypoints.options import ServerOptions
from engine.entrypoints.prepare_stage import INLINE_CACHE_MIB, PrepareStage, inline_preparer
from engine.entrypoints.served_model import prepare_config
from engine.runner.weights.model_files import open_model
from recipe.encoding.tokenizer import Tokenizer
from tests.engine.entrypoints.harness import BODIES, Door, chat, open_door
from tests.lived_time import HANG_S, until

SMALL_BODY = b'{"model":"m"}'
LARGE = chat(messages=[{"role": "user", "content": "word " * 300}])


async def answer(door: Door, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.post(door.url + path, json=body) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("path", BODIES)
async def test_a_small_body_is_answered_while_no_worker_is(path: str) -> None:
    async with open_door(inline_preparation_bytes=1024) as door:
        door.pool.gate.clear()
        status, _ = await asyncio.wait_for(answer(door, path, BODIES[path]), HANG_S)
        assert status == 200
        assert door.desk.telemetry.metrics.prepare.total > 0
        await until(door.is_idle)


async def test_a_body_above_the_limit_waits_for_a_worker() -> None:
    async with open_door(inline_preparation_bytes=1024) as door:
        door.pool.gate.clear()
        asked = asyncio.ensure_future(answer(door, "/v1/chat/completions", LARGE))
        await until(lambda: door.pool.waiting == 1)
        door.pool.gate.set()
        assert (await asked)[0] == 200


async def test_at_0_even_the_smallest_body_is_a_workers() -> None:
    async with open_door(inline_preparation_bytes=0) as door:
        door.pool.gate.clear()
        asked = asyncio.ensure_future(answer(door, "/v1/chat/completions", chat()))
        await until(lambda: door.pool.waiting == 1)
        door.pool.gate.set()
        assert (await asked)[0] == 200


@pytest.mark.parametrize("path", BODIES)
async def test_both_ways_say_the_same_of_a_wrong_body(path: str) -> None:
    wrong = BODIES[path] | {"temperature": "hot"}
    async with open_door(inline_preparation_bytes=1024) as inline, open_door(inline_preparation_bytes=0) as worker:
        told = [await answer(door, path, wrong) for door in (inline, worker)]
    for _, body in told:
        body.pop("request_id", None)
    assert told[0] == told[1]
    assert told[0][0] == 400


async def test_a_failure_of_ours_is_a_500_and_costs_no_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("secret")

    monkeypatch.setattr("recipe.prepare.Preparer.prepare", fail)
    async with open_door(inline_preparation_bytes=1024) as door:
        status, body = await answer(door, "/v1/chat/completions", chat())
        assert status == 500 and "secret" not in str(body)
        await until(door.is_idle)


class Place:
    """Where bodies are prepared: notes them, and says its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bodies: list[bytes] = []

    def prepare(self, protocol: str, body: bytes, response_id: str) -> str:
        self.bodies.append(body)
        return self.name

    async def run(self, function: Any, protocol: str, body: bytes, response_id: str, affinity: int | None) -> str:
        await asyncio.sleep(0)
        return self.prepare(protocol, body, response_id)


@pytest.mark.parametrize(("one_a_turn", "expected"), [(True, ["loop", "pool", "pool"]), (False, ["loop"] * 3)])
async def test_of_small_bodies_that_come_together_the_loop_prepares_one_unless_it_has_the_only_cpu(
    one_a_turn: bool, expected: list[str]
) -> None:
    pool, loop = Place("pool"), Place("loop")
    stage = PrepareStage(pool, loop, 100, one_a_turn=one_a_turn)  # type: ignore[arg-type]
    for _ in range(2):
        assert await asyncio.gather(*(stage.prepare("messages", SMALL_BODY, "id") for _ in range(3))) == expected


def test_the_loops_own_preparer_shares_the_tokenizer_and_keeps_little() -> None:
    options = ServerOptions(backend="mock")
    files = open_model(None)
    config = prepare_config(options, files, 100)
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    preparer = inline_preparer(config, tokenizer)
    assert preparer.tokenizer is tokenizer
    assert preparer.config.token_cache_mib == INLINE_CACHE_MIB < config.token_cache_mib
    assert inline_preparer(replace(config, token_cache_mib=0), tokenizer).config.token_cache_mib == 0
