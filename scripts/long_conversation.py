#!/usr/bin/env python3
"""An agent's conversation of many turns, with caches and without: the same answers, log probabilities and usage.

    python server.py --port 8001 &
    python server.py --port 8002 --no-prefix-cache --token-cache-mib 0 &
    python scripts/long_conversation.py http://127.0.0.1:8001 http://127.0.0.1:8002 --turns 100 --result-chars 60

Each turn sends everything said before, the model's own answers included, to the first server, and the same body to the
second. Prints what both took, and what the first one knew; ends with 1 at the first turn that differs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.request import Request, urlopen

TIMEOUT_S = 300.0
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
SETTINGS = {"temperature": 0, "logprobs": True, "tools": [TOOL]}
FIRST = [
    {"role": "system", "content": "You read files and say what they hold."},
    {"role": "user", "content": "What do the files hold?"},
]
FILLING = "the parser calls the scanner, which looks for the end of a string before it gives anything away, "


@dataclass(frozen=True)
class Turn:
    """What one turn came to. `known` and `new` are the texts that were and were not in a token cache meanwhile."""

    body: bytes
    answer: str
    logprobs: list[float]
    prompt_tokens: int
    cached_tokens: int
    seconds: float
    known: int
    new: int

    def difference(self, other: Turn) -> str:
        """What the same body came to elsewhere, as far as it differs; "" where it does not."""
        names = ("answer", "prompt_tokens", "logprobs")
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return ", ".join(f"{name} {mine!r} and {theirs!r}" for name, mine, theirs in pairs if mine != theirs)


def ask(url: str, body: bytes) -> Turn:
    """Have the server at `url` answer, while it answers nobody else."""
    before, started = texts_looked_up(url), time.perf_counter()
    with urlopen(Request(f"{url}/v1/chat/completions", body), timeout=TIMEOUT_S) as response:
        answer = json.loads(response.read())
    seconds, after = time.perf_counter() - started, texts_looked_up(url)
    choice, usage = answer["choices"][0], answer["usage"]
    return Turn(
        body,
        choice["message"]["content"],
        [token["logprob"] for token in choice["logprobs"]["content"]],
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        seconds,
        after["hit"] - before["hit"],
        after["miss"] - before["miss"],
    )


def texts_looked_up(url: str) -> dict[str, int]:
    """How many texts were in a token cache (`hit`) and how many were not (`miss`), since the server started."""
    with urlopen(f"{url}/metrics", timeout=TIMEOUT_S) as response:
        found = re.findall(r'server_prompt_texts_total\{cache="(\w+)"\} (\S+)', response.read().decode())
    return {"hit": 0, "miss": 0} | {name: int(float(value)) for name, value in found}


def turns_of(url: str, model: str, number: int, *, max_tokens: int = 4, result_chars: int = 0) -> Iterator[Turn]:
    """Hold a conversation of `number` turns. Each result is a few characters and `result_chars` more of filling."""
    messages: list[dict[str, Any]] = list(FIRST)
    filling = FILLING * (result_chars // len(FILLING) + 1)
    for index in range(number):
        body = {"model": model, "max_tokens": max_tokens, **SETTINGS, "messages": messages}
        turn = ask(url, json.dumps(body).encode())
        yield turn
        messages += call_and_result(index, turn.answer, filling[:result_chars])


def call_and_result(index: int, answer: str, filling: str) -> list[dict[str, Any]]:
    call = {"id": f"call_{index}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": answer, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{index}", "content": f"a{index * 37 % 100}{filling}"},
    ]


def model_at(url: str) -> str:
    with urlopen(f"{url}/v1/models", timeout=TIMEOUT_S) as response:
        return str(json.loads(response.read())["data"][0]["id"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("warm", help="URL of the server with caches")
    parser.add_argument("cold", help="URL of the same model without")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=4, help="tokens of each answer (4)")
    parser.add_argument("--result-chars", type=int, default=0, help="filling of each result in characters (0)")
    given = parser.parse_args()
    conversation = turns_of(
        given.warm, model_at(given.warm), given.turns, max_tokens=given.max_tokens, result_chars=given.result_chars
    )
    for index, warm in enumerate(conversation):
        cold = ask(given.cold, warm.body)
        print(
            f"turn {index}: {warm.prompt_tokens} tokens, {warm.cached_tokens} of them computed before, {warm.known} "
            f"texts known, {warm.new} new; {warm.seconds * 1e3:.0f} ms with caches, {cold.seconds * 1e3:.0f} ms without"
        )
        if difference := warm.difference(cold):
            print(f"turn {index} differs: {difference}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
