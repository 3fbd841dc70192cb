"""An agent's conversation through the whole door: the token cache fills, and changes nothing."""

from __future__ import annotations

from typing import Any

import aiohttp

from tests.engine.entrypoints.harness import MODEL, Door, open_door

TURNS = 100


def turn(number: int) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": f"question {number}: what does file_{number}.py do?"},
        {"role": "assistant", "content": f"It adds {number * 7919}."},
    ]


async def hold_conversation(door: Door) -> list[list[int]]:
    """Ask once a turn, with everything said so far; return the prompts that the engine got."""
    messages: list[dict[str, Any]] = []
    async with aiohttp.ClientSession() as session:
        for number in range(TURNS):
            question, answer = turn(number)
            body = {"model": MODEL, "messages": [*messages, question], "max_tokens": 3}
            async with session.post(f"{door.url}/v1/chat/completions", json=body) as response:
                assert response.status == 200
                assert (await response.json())["choices"][0]["message"]["content"] == "word word word "
            messages += [question, answer]
    return [list(request.prompt_token_ids) for request in door.backend.requests]


async def test_a_hundred_turns_get_the_prompts_of_a_server_without_cache_and_each_encodes_its_own_texts() -> None:
    async with open_door(token_cache_mib=8) as warm:
        prompts = await hold_conversation(warm)
        texts = warm.desk.telemetry.metrics.prompt_texts
    async with open_door(token_cache_mib=0) as cold:
        assert await hold_conversation(cold) == prompts
        assert cold.desk.telemetry.metrics.prompt_texts["hit"] == 0
    assert 2 * TURNS - 1 <= texts["miss"] <= 2 * TURNS + 2
    assert texts["hit"] >= TURNS * (TURNS - 1) - TURNS


async def test_the_metrics_show_how_many_texts_were_known() -> None:
    async with open_door() as door, aiohttp.ClientSession() as session:
        await hold_conversation(door)
        async with session.get(f"{door.url}/metrics") as response:
            lines = (await response.text()).splitlines()
    texts = door.desk.telemetry.metrics.prompt_texts
    assert f'server_prompt_texts_total{{cache="hit"}} {float(texts["hit"])}' in lines
    assert f'server_prompt_texts_total{{cache="miss"}} {float(texts["miss"])}' in lines
