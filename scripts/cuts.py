#!/usr/bin/env python3
"""Clients that leave at random: whatever they cut and however, nothing of it may be left in the server.

    python scripts/cuts.py                        # 5,000 cuts against the embedded model
    python scripts/cuts.py --seconds 20

A cut happens at a random byte of the request or of the response, or after a random time; by closing, by a reset, or by
closing one half. Afterwards no permit, sequence, block, task or file descriptor may be left. Ends with 1 if one is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import time

from server_under_load import (
    PATHS,
    ServerUnderLoad,
    encoded,
    generating_body,
    http_request,
    open_connection,
    seed_or_now,
    server_under_load,
)

CONCURRENCY = 12
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards mix strong coffee".split()  # noqa: SIM905


def random_request(rng: random.Random) -> bytes:
    text = " ".join(rng.choices(WORDS, k=rng.choice([3, 20, 80])))
    body = generating_body(rng.choice(PATHS), text, rng.choice([1, 20, 300]), rng.random() < 0.7)
    if "messages" in body and rng.random() < 0.15:
        body |= {"response_format": {"type": "json_object"}, "messages": [{"role": "user", "content": "json: " + text}]}
        return http_request(PATHS[0], encoded(body))
    path = PATHS[1] if "input" in body else rng.choice([PATHS[0], PATHS[2]])
    return http_request(path, encoded(body))


async def cut(server: ServerUnderLoad, rng: random.Random) -> None:
    """One request that is not let come to its end."""
    reader, writer = await open_connection(server.address)
    try:
        request = random_request(rng)
        if rng.random() < 0.2:
            request = request[: rng.randrange(len(request))]
        writer.write(request)
        if rng.random() < 0.5:
            await asyncio.sleep(rng.expovariate(1 / 0.3))
        else:
            with contextlib.suppress(asyncio.IncompleteReadError, TimeoutError):
                await asyncio.wait_for(reader.readexactly(rng.randrange(1, 4000)), rng.uniform(0.01, 2.0))
        await leave(writer, rng)
    except ConnectionError:
        pass  # the server was quicker
    finally:
        writer.close()


async def leave(writer: asyncio.StreamWriter, rng: random.Random) -> None:
    how = rng.randrange(3)
    if how == 0:
        writer.transport.abort()
    elif how == 1 and writer.can_write_eof():
        writer.write_eof()
        await asyncio.sleep(rng.uniform(0, 0.3))


async def run_cuts(server: ServerUnderLoad, number: int, seconds: float, seed: int) -> int:
    """Make cuts until there were `number`, or for `seconds`; returns how many."""
    deadline = time.monotonic() + seconds if seconds else float("inf")
    made = 0

    async def client(rng: random.Random) -> None:
        nonlocal made
        while made < number and time.monotonic() < deadline:
            made += 1
            await cut(server, rng)

    await asyncio.gather(*(client(random.Random(f"{seed}.{index}")) for index in range(CONCURRENCY)))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=0.0, help="end after so many seconds")
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    seed = seed_or_now(arguments.seed)
    options = ["--served-model-name", "m", "--max-model-len", "1024", "--kv-cache-mib", "64", "--workers", "1"]
    options += ["--max-num-batched-tokens", "128", "--threads", "1"]
    with server_under_load(*options) as server:
        asyncio.run(run_cuts(server, CONCURRENCY, 5.0, seed + 1))  # whatever is made once is made
        server.leaks({"server_tasks": 1e9, "process_open_fds": 1e9})
        before, started = server.at_rest(), time.monotonic()
        made = asyncio.run(run_cuts(server, arguments.cuts, arguments.seconds, seed))
        leaks = server.leaks(before)
        figures = server.metrics()
        print(
            f"{made} cuts in {time.monotonic() - started:.0f} s: {figures['server_disconnects_total']:.0f} seen as"
            f" disconnects, {figures['server_completion_tokens_total']:.0f} tokens; leaks: {leaks or 'none'}"
        )
    return 1 if leaks else 0


if __name__ == "__main__":
    sys.exit(main())
