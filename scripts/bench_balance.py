#!/usr/bin/env python3
"""Simulates a fleet of engines under mixed requests, and compares ways to spread them.

    scripts/bench_balance.py                       # 10,000 requests over 16 engines that step on their own
    scripts/bench_balance.py --lockstep            # engines that wait for the slowest of each step
    scripts/bench_balance.py --shared 0.5          # half of the requests share beginnings of prompts

A step takes a base time, a share for each sequence that decodes, a share for each token of KV that attention reads,
and a share for each prompt token that no cache has, of which a step takes only so many. Requests wait where the KV is
full. Nothing here knows a network or a model: what is measured is the policy, with the code that the server runs.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from engine.backends.balancer import Favourite, Load, choose
from engine.backends.prefix_affinity import PrefixAffinity

BASE_S = 10e-3
SEQUENCE_S = 5e-5
KV_TOKEN_S = 3e-8
PROMPT_TOKEN_S = 1.5e-5
STEP_PROMPT_TOKENS = 2048
KV_CAPACITY_TOKENS = 400_000
MAX_SEQUENCES = 256
BLOCK_TOKENS = 64
CACHED_BLOCKS = 4000
MEAN_OUTPUT_TOKENS = 300
MAX_OUTPUT_TOKENS = 2000


@dataclass(eq=False, slots=True)
class Request:
    """Tokens of prompt and output, and the blocks of a prompt as hashes; times in simulated seconds."""

    arrives_at: float
    prompt_tokens: int
    output_tokens: int
    hashes: list[int]
    ends_at: float = 0.0


@dataclass(eq=False)
class Engine:
    """Steps as long as it has sequences. `cache` is what it really holds of prompts."""

    running: dict[Request, int] = field(default_factory=dict)  # tokens left
    filling: deque[tuple[Request, int]] = field(default_factory=deque)  # prompt tokens left
    waiting: deque[Request] = field(default_factory=deque)
    kv_tokens: int = 0  # of what is running or filling
    open_tokens: int = 0  # of what waits, too
    busy_s: float = 0.0
    cache: PrefixAffinity[bool] = field(default_factory=lambda: PrefixAffinity(CACHED_BLOCKS))

    @property
    def load(self) -> Load:
        return Load(self.num_sequences + len(self.waiting), self.open_tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.running) + len(self.filling)

    @property
    def is_idle(self) -> bool:
        return not (self.running or self.filling or self.waiting)

    def add(self, request: Request) -> None:
        self.waiting.append(request)
        self.open_tokens += request.prompt_tokens

    def begin_step(self) -> float:
        """Take in what fits; how long the step takes, in seconds."""
        self._admit()
        if self.is_idle:
            return 0.0
        decode_s = SEQUENCE_S * len(self.running) + KV_TOKEN_S * self.kv_tokens
        return BASE_S + decode_s + PROMPT_TOKEN_S * self._fill()

    def end_step(self, now: float) -> None:
        self.kv_tokens += len(self.running)
        self.open_tokens += len(self.running)
        for request in [request for request, left in self.running.items() if left == 1]:
            del self.running[request]
            request.ends_at = now
            self.kv_tokens -= request.prompt_tokens + request.output_tokens
            self.open_tokens -= request.prompt_tokens + request.output_tokens
        for request in self.running:
            self.running[request] -= 1
        while self.filling and not self.filling[0][1]:
            request, _ = self.filling.popleft()
            self.cache.record(request.hashes, True)
            self.running[request] = request.output_tokens

    def _admit(self) -> None:
        while self.waiting and self.num_sequences < MAX_SEQUENCES:
            request = self.waiting[0]
            if self.num_sequences and self.kv_tokens + request.prompt_tokens > KV_CAPACITY_TOKENS:
                return
            found = self.cache.find(request.hashes)
            cached = found[1] * BLOCK_TOKENS if found else 0
            self.filling.append((self.waiting.popleft(), request.prompt_tokens - cached))
            self.kv_tokens += request.prompt_tokens

    def _fill(self) -> int:
        """Compute prompts in turn; how many of their tokens."""
        budget = STEP_PROMPT_TOKENS
        for place, (request, left) in enumerate(self.filling):
            taken = min(left, budget)
            self.filling[place] = (request, left - taken)
            budget -= taken
        return STEP_PROMPT_TOKENS - budget


Policy = Callable[[Sequence[Engine], Request], int]


def round_robin() -> Policy:
    turn = 0

    def pick(engines: Sequence[Engine], request: Request) -> int:
        nonlocal turn
        turn += 1
        return turn % len(engines)

    return pick


def least_requests() -> Policy:
    return lambda engines, request: min(range(len(engines)), key=lambda index: engines[index].load.requests)


def two_axes() -> Policy:
    """What the server does, without affinity."""
    return lambda engines, request: choose([e.load for e in engines], request.prompt_tokens, MEAN_OUTPUT_TOKENS)


def two_axes_and_affinity() -> Policy:
    """What the server does."""
    affinity: PrefixAffinity[int] = PrefixAffinity()

    def pick(engines: Sequence[Engine], request: Request) -> int:
        found = affinity.find(request.hashes)
        favourite = Favourite(found[0], found[1] * BLOCK_TOKENS) if found else None
        index = choose([e.load for e in engines], request.prompt_tokens, MEAN_OUTPUT_TOKENS, favourite)
        affinity.record(request.hashes, index)
        return index

    return pick


POLICIES = {
    "round-robin": round_robin,
    "least-requests": least_requests,
    "two axes": two_axes,
    "two axes, affinity": two_axes_and_affinity,
}


def make_requests(number: int, rate: float, shared: float, seed: int) -> list[Request]:
    """Three kinds: chats, long documents with short answers, and short prompts with long answers."""
    draw, requests, now = random.Random(seed), [], 0.0
    for index in range(number):
        now += draw.expovariate(rate)
        prompt, output = draw.choices(((400, 250), (12_000, 150), (200, 1200)), (70, 15, 15))[0]
        prompt_tokens = max(16, int(draw.lognormvariate(0, 0.5) * prompt))
        group = draw.randrange(64) if draw.random() < shared else -1 - index
        common = int(0.8 * prompt_tokens) // BLOCK_TOKENS
        hashes = [hash((group if block < common else ~index, block)) for block in range(prompt_tokens // BLOCK_TOKENS)]
        requests.append(
            Request(now, prompt_tokens, min(MAX_OUTPUT_TOKENS, 1 + int(draw.expovariate(1 / output))), hashes)
        )
    return requests


def run_free(engines: list[Engine], requests: list[Request], pick: Policy) -> float:
    """Every engine steps on its own. Returns the end of the last request, up to which engines can be idle."""
    due: list[tuple[float, int]] = []  # ends of steps
    stepping, now, arrivals = [False] * len(engines), 0.0, iter([*requests, None])
    upcoming = next(arrivals)

    def step(index: int) -> None:
        duration = engines[index].begin_step()
        stepping[index] = duration > 0
        if duration:
            engines[index].busy_s += duration
            heapq.heappush(due, (now + duration, index))

    while upcoming is not None or due:
        if upcoming is not None and (not due or upcoming.arrives_at <= due[0][0]):
            now = upcoming.arrives_at
            index = pick(engines, upcoming)
            engines[index].add(upcoming)
            upcoming = next(arrivals)
            if not stepping[index]:
                step(index)
            continue
        now, index = heapq.heappop(due)
        engines[index].end_step(now)
        step(index)
    return now


def run_lockstep(engines: list[Engine], requests: list[Request], pick: Policy) -> float:
    """All engines step together, as the ranks of one expert-parallel model do: each waits for the slowest.

    Returns the end of the last request.
    """
    now, place = 0.0, 0
    while place < len(requests) or not all(engine.is_idle for engine in engines):
        if all(engine.is_idle for engine in engines):
            now = max(now, requests[place].arrives_at)
        while place < len(requests) and requests[place].arrives_at <= now:
            engines[pick(engines, requests[place])].add(requests[place])
            place += 1
        durations = [engine.begin_step() for engine in engines]
        now += max(durations)
        for engine, duration in zip(engines, durations, strict=True):
            engine.busy_s += duration
            engine.end_step(now)
    return now


def simulate(name: str, options: argparse.Namespace) -> str:
    requests = make_requests(options.requests, options.rate, options.shared, options.seed)
    engines = [Engine() for _ in range(options.engines)]
    ended_at = (run_lockstep if options.lockstep else run_free)(engines, requests, POLICIES[name]())
    times = sorted(request.ends_at - request.arrives_at for request in requests)
    per_token = sorted((request.ends_at - request.arrives_at) / request.output_tokens for request in requests)
    idle = 1 - sum(engine.busy_s for engine in engines) / (ended_at * len(engines))
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    p99_token_ms = 1000 * per_token[len(per_token) * 99 // 100]
    return (
        f"{name:20} p50 {p50:6.2f} s   p99 {p99:6.2f} s   p99 a token {p99_token_ms:6.1f} ms   idle {100 * idle:5.1f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--engines", type=int, default=16)
    parser.add_argument("--rate", type=float, default=150.0, help="requests a second")
    parser.add_argument("--shared", type=float, default=0.0, help="share of requests with a beginning in common")
    parser.add_argument("--lockstep", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in POLICIES:
        print(simulate(name, options), flush=True)


if __name__ == "__main__":
    main()
