#!/usr/bin/env python3
"""Hostile bodies and hostile bytes at the socket: never a 5xx, never silence, never more memory.

    python scripts/fuzz_server.py                     # 100,000 bodies and 10,000 byte streams
    python scripts/fuzz_server.py --seconds 20

Bodies are valid requests of every route, mutated as JSON (other types, other depths, odd numbers and strings) and as
bytes. Byte streams are requests mutated below HTTP. Every answer must come within ten seconds, and be no 5xx. Ends
with 1 if one is, or if the server or its workers hold more memory in the end. Prints what broke it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from server_under_load import (
    PATHS,
    ServerUnderLoad,
    encoded,
    generating_body,
    http_request,
    open_connection,
    seed_or_now,
    server_under_load,
    status_of,
)

ANSWER_LIMIT_S = 30.0
GROWTH_LIMIT = 1.05
GROWTH_ALLOWANCE_MIB = 16.0
CONCURRENCY = 8
ROUTES = (*PATHS, "/v1/completions", "/v1/messages/count_tokens", "/tokenize")

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "strict": True,
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    },
}
EXTRAS: list[dict[str, Any]] = [
    {}, {"temperature": 0.5, "top_p": 0.9, "seed": 3}, {"stop": ["a", "b"]}, {"tools": [TOOL], "tool_choice": "auto"},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}},
    {"logit_bias": {"5": 1}, "stop_token_ids": [7], "logprobs": True, "top_logprobs": 3}, {"n": 2}, {"prompt": [1, 2]},
    {"stream_options": {"include_usage": True}}, {"system": "be brief"}, {"instructions": "be brief"},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"reasoning": {"effort": "high"}}, {"prompt": "once"},
]  # fmt: skip
ODD: list[Any] = [
    None, True, 0, -1, 1.5, 1e308, -(2**63), 2**64, 10**30, "", "\x00", "\ud800", "x" * 3000, "<|im_end|>", [], {},
    [[]], {"": ""}, ["a", 1, None], {"type": "text"}, {"$ref": "#"}, [{"role": "user"}], [{"type": "image_url"}],
    "data:,", "é" * 99, "@deep",
]  # fmt: skip
DEEP = b'"@deep"'
BREAKERS = (
    b"\r\n",
    b"\n",
    b"\x00",
    b"\xff\xfe",
    b":",
    b"HTTP/1.1",
    b"chunked",
    b"Content-Length: 5\r\n",
    b"%",
    b" " * 400,
)


GoesOn = Callable[[], bool]


class Findings:
    """What was answered, and what should not have happened."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.failures: list[str] = []

    def note(self, status: int, sent: bytes, why: str = "") -> None:
        self.statuses[status] += 1
        if why or status >= 500:
            self.failures.append(f"{why or status}: {sent[:400]!r}")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    found = [path] if path else []
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += places(inner, (*path, key))
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of `value` with something else at `path`."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def deep(rng: random.Random) -> bytes:
    """JSON nested deeper than any request needs, or than anybody can read."""
    depth = rng.choice([5, 100, 2000, 50_000])
    return b"[" * depth + b"]" * depth if rng.random() < 0.5 else b'{"a":' * depth + b"1" + b"}" * depth


def hostile_body(rng: random.Random) -> tuple[str, bytes]:
    """A route, and a body that it may not like."""
    path = rng.choice(ROUTES)
    body = generating_body(path, "hello there", rng.choice([1, 5]), rng.random() < 0.3) | rng.choice(EXTRAS)
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        inside = places(body)
        body = replaced(body, rng.choice(inside), rng.choice(ODD))
        if not isinstance(body, dict):
            break
    if isinstance(body, dict) and rng.random() < 0.3:
        body["".join(rng.choices("abn_\x00é", k=3))] = rng.choice(ODD)
    data = encoded(body).replace(DEEP, deep(rng))
    return path, mutated(data, rng) if rng.random() < 0.3 else data


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, cut out, doubled or put in."""
    for _ in range(rng.randrange(1, 5)):
        at, length = rng.randrange(len(data) + 1), rng.choice([0, 1, 1, 8, 200])
        put = rng.choice([b"", rng.randbytes(rng.choice([1, 4])), rng.choice(BREAKERS), data[at : at + length] * 2])
        data = data[:at] + put + data[at + length :]
    return data


def hostile_bytes(rng: random.Random) -> bytes:
    """Something that is nearly HTTP, or not at all."""
    if rng.random() < 0.2:
        return rng.randbytes(rng.choice([1, 30, 3000]))
    request = http_request(rng.choice(ROUTES), encoded(generating_body(PATHS[0], "hi", 1, False)), "Connection: close")
    if rng.random() < 0.3:
        request = request.replace(b"Content-Length", rng.choice([b"Transfer-Encoding", b"content-length", b"Expect"]))
    return mutated(request, rng)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """The status, and whether the connection can be used again."""
    head = await reader.readuntil(b"\r\n\r\n")
    lowered = head.lower()
    if match := re.search(rb"content-length: (\d+)", lowered):
        await reader.readexactly(int(match[1]))
    elif b"chunked" in lowered:
        while (size := int(await reader.readline(), 16)) >= 0:
            await reader.readexactly(size + 2)
            if not size:
                break
    return status_of(head), b"connection: close" not in lowered


async def throw_bodies(
    server: ServerUnderLoad, rng: random.Random, goes_on: Callable[[], bool], found: Findings
) -> None:
    connection = None
    while goes_on():
        path, body = hostile_body(rng)
        connection = connection or await open_connection(server.address)
        reader, writer = connection
        try:
            writer.write(http_request(path, body))
            status, stays = await asyncio.wait_for(read_answer(reader), ANSWER_LIMIT_S)
            found.note(status, path.encode() + b" " + body)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, TimeoutError) as error:
            found.note(0, path.encode() + b" " + body, f"no proper answer ({type(error).__name__})")
            stays = False
        if not stays:
            writer.close()
            connection = None


async def throw_bytes(
    server: ServerUnderLoad, rng: random.Random, goes_on: Callable[[], bool], found: Findings
) -> None:
    while goes_on():
        data = hostile_bytes(rng)
        reader, writer = await open_connection(server.address)
        try:
            writer.write(data)
            answer = await first_bytes(reader, rng.choice([0.01, 0.1]))
            writer.write_eof()
            answer += await asyncio.wait_for(reader.read(1 << 20), ANSWER_LIMIT_S)
            found.note(status_of(answer), data)
        except ConnectionError:
            found.note(0, data)  # it hung up: an answer too
        except TimeoutError:
            found.note(0, data, "silence")
        writer.close()


async def first_bytes(reader: asyncio.StreamReader, patience_s: float) -> bytes:
    """What comes within that time: an unfinished request gets nothing for a while."""
    try:
        return await asyncio.wait_for(reader.read(1 << 16), patience_s)
    except TimeoutError:
        return b""


async def fuzz(server: ServerUnderLoad, bodies: int, streams: int, seconds: float, seed: int) -> Findings:
    """Throw that many of each, or for `seconds`."""
    found = Findings()
    deadline = time.monotonic() + seconds if seconds else float("inf")

    def up_to(number: int) -> GoesOn:
        left = iter(range(number))
        return lambda: time.monotonic() < deadline and next(left, None) is not None

    more_bodies, more_streams = up_to(bodies), up_to(streams)
    rngs = [random.Random(f"{seed}.{index}") for index in range(CONCURRENCY + 2)]
    await asyncio.gather(
        *(throw_bodies(server, rng, more_bodies, found) for rng in rngs[:CONCURRENCY]),
        *(throw_bytes(server, rng, more_streams, found) for rng in rngs[CONCURRENCY:]),
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", type=int, default=100_000)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=0.0, help="end after so many seconds")
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    seed = seed_or_now(arguments.seed)
    with server_under_load(
        "--backend", "mock", "--mock-tokens", "3", "--served-model-name", "m", "--workers", "1"
    ) as server:
        asyncio.run(fuzz(server, arguments.bodies // 20, arguments.streams // 20, arguments.seconds / 4, seed + 1))
        before, memory = server.at_rest(), server.memory_mib()
        found = asyncio.run(fuzz(server, arguments.bodies, arguments.streams, arguments.seconds, seed))
        problems = found.failures + server.leaks(before)
        grown = server.memory_mib()
        if grown > memory * GROWTH_LIMIT + GROWTH_ALLOWANCE_MIB:
            problems.append(f"memory grew from {memory:.0f} to {grown:.0f} MiB")
        print(f"answers by status {dict(sorted(found.statuses.items()))}; memory {memory:.0f} -> {grown:.0f} MiB")
    for problem in problems[:20]:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
