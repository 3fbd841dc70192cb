#!/usr/bin/env python3
"""A server at twice its capacity, with everything that goes wrong at once, for as long as you like.

    python scripts/soak.py                               # 30 minutes on the embedded model
    python scripts/soak.py --seconds 25 --backend mock   # no model: the entry layer alone

First the capacity is measured with as many clients as the server admits. Then requests come at twice that rate: 20% of
the clients leave, 5% send hostile bodies, 5% read slowly, and every ten seconds a worker process is killed. The p99 of
the time to the first token of the admitted must stay within what the admitted ones ahead of it take, nothing may leak,
memory must stay flat, and nobody but the requests of a killed worker may see a 500. Ends with 1 otherwise.

Memory is compared with what it was after a quarter of the time: until then it grows, as the blocks of the KV cache are
used for the first time one after another, and as caches fill up to their bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from cuts import WORDS
from fuzz_server import hostile_body, read_answer
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

MAX_REQUESTS = 16
TOKENS = 24
KILL_INTERVAL_S = 10.0
CALLS_OF_A_WORKER = 16
RSS_GROWTH = 1.05
RSS_LOOKS = 20
"""How often memory is looked at, in equal intervals; the fifth look is what later ones are compared with."""
SHORT_S, SHORT_ALLOWANCE_MIB = 120.0, 8.0
"""A run shorter than that ends before caches are full, and may grow by so much more."""
WORKER_RESTART_S = 8.0
"""What a killed worker may add to the time to a first token, on a busy machine."""


@dataclass
class Seen:
    """What the clients saw."""

    answers: Counter[str] = field(default_factory=Counter)
    first_s: list[float] = field(default_factory=list)
    kills: int = 0
    memory_mib: list[float] = field(default_factory=list)

    @property
    def settled_mib(self) -> float:
        return self.memory_mib[RSS_LOOKS // 4]

    def p99(self) -> float:
        ordered = sorted(self.first_s)
        return ordered[int(len(ordered) * 0.99)] if ordered else 0.0


def request(rng: random.Random) -> bytes:
    path = rng.choice(PATHS)
    text = " ".join(rng.choices(WORDS, k=rng.randrange(2, 30)))
    return http_request(path, encoded(generating_body(path, text, TOKENS, True)), "Connection: close")


async def ask(server: ServerUnderLoad, rng: random.Random, seen: Seen, kind: str) -> None:
    """One client: `kind` is what becomes of it."""
    try:
        reader, writer = await open_connection(server.address)
    except (OSError, TimeoutError):
        seen.answers["no connection"] += 1
        return
    try:
        if kind == "hostile":
            writer.write(http_request(*hostile_body(rng)))
            status, _ = await asyncio.wait_for(read_answer(reader), 60)
            seen.answers[f"hostile {status}"] += 1
        else:
            await stream(reader, writer, rng, seen, kind)
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        seen.answers[f"{kind} cut off"] += 1
    except TimeoutError:
        seen.answers[f"{kind} silence"] += 1
    finally:
        writer.close()


async def stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random, seen: Seen, kind: str
) -> None:
    sent_at = time.monotonic()
    writer.write(request(rng))
    if kind == "leaving" and rng.random() < 0.5:
        await asyncio.sleep(rng.expovariate(2))
        return
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)
    status = status_of(head)
    seen.answers[f"{kind} {status}"] += 1
    if status != 200:
        return
    seen.first_s.append(time.monotonic() - sent_at)
    if kind == "leaving":
        await reader.read(rng.randrange(1, 2000))
        return
    while await asyncio.wait_for(reader.read(200 if kind == "slow" else 1 << 16), 120):
        if kind == "slow":
            await asyncio.sleep(0.05)


async def measure_capacity(server: ServerUnderLoad, seconds: float, rng: random.Random) -> float:
    """Requests a second, with as many clients as are admitted."""
    deadline, seen = time.monotonic() + seconds, Seen()

    async def client() -> None:
        while time.monotonic() < deadline:
            await ask(server, rng, seen, "plain")

    started = time.monotonic()
    await asyncio.gather(*(client() for _ in range(MAX_REQUESTS)))
    return seen.answers["plain 200"] / (time.monotonic() - started)


def random_kind(rng: random.Random) -> str:
    return rng.choices(["plain", "leaving", "hostile", "slow"], [70, 20, 5, 5])[0]


async def soak(server: ServerUnderLoad, seconds: float, rate: float, rng: random.Random) -> Seen:
    """Send at `rate` for `seconds`."""
    seen, started, open_clients = Seen(), time.monotonic(), set[asyncio.Task[None]]()
    kill_at = started + min(KILL_INTERVAL_S, seconds / 3)
    while (now := time.monotonic()) < started + seconds:
        task = asyncio.ensure_future(ask(server, rng, seen, random_kind(rng)))
        open_clients.add(task)
        task.add_done_callback(open_clients.discard)
        if now > kill_at:
            kill_at = now + KILL_INTERVAL_S
            seen.kills += kill_a_worker(server, rng)
        if now - started >= len(seen.memory_mib) * seconds / RSS_LOOKS:
            seen.memory_mib.append(server.memory_mib())
        await asyncio.sleep(rng.expovariate(rate))
    await asyncio.gather(*open_clients)
    seen.memory_mib.append(server.memory_mib())
    return seen


def kill_a_worker(server: ServerUnderLoad, rng: random.Random) -> int:
    workers = server.workers()
    if workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(workers), signal.SIGKILL)
            return 1
    return 0


def problems_of(seen: Seen, bound_s: float, seconds: float) -> list[str]:
    found = []
    if seen.p99() > bound_s:
        found.append(f"the p99 of the first token is {seen.p99():.2f} s, the bound {bound_s:.2f} s")
    failures = sum(number for name, number in seen.answers.items() if name.endswith((" 500", " 504", "cut off")))
    if failures > seen.kills * CALLS_OF_A_WORKER:
        found.append(f"{failures} requests failed, with {seen.kills} workers killed")
    found += [f"{number} x {name}" for name, number in seen.answers.items() if "silence" in name]
    allowed_mib = seen.settled_mib * RSS_GROWTH + (SHORT_ALLOWANCE_MIB if seconds < SHORT_S else 0)
    if seen.memory_mib[-1] > allowed_mib:
        found.append(f"memory grew from {seen.settled_mib:.0f} to {seen.memory_mib[-1]:.0f} MiB")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--backend", choices=("local", "mock"), default="local")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the model")
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    rng = random.Random(seed_or_now(arguments.seed))
    options = ["--served-model-name", "m", "--workers", "2", "--max-requests", str(MAX_REQUESTS)]
    if arguments.backend == "mock":
        options += ["--backend", "mock", "--mock-rate", "40", "--mock-tokens", str(TOKENS)]
    else:
        options += ["--max-model-len", "1024", "--kv-cache-mib", "128", "--threads", str(arguments.threads)]
    with server_under_load(*options) as server:
        capacity = asyncio.run(measure_capacity(server, min(20.0, arguments.seconds / 4), rng))
        server.leaks({"server_tasks": 1e9, "process_open_fds": 1e9})
        before = server.at_rest()
        bound_s = 2 * MAX_REQUESTS / max(capacity, 0.1) + WORKER_RESTART_S
        seen = asyncio.run(soak(server, arguments.seconds, 2 * capacity, rng))
        problems = problems_of(seen, bound_s, arguments.seconds) + server.leaks(before)
    print(f"capacity {capacity:.1f} requests/s; {seen.kills} workers killed; {dict(sorted(seen.answers.items()))}")
    print(f"first token p99 {seen.p99():.3f} s (bound {bound_s:.1f})")
    print("memory in MiB over time:", *(f"{size:.1f}" for size in seen.memory_mib))
    print("problems:", problems or "none")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
