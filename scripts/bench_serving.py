#!/usr/bin/env python3
"""Measure a running OpenAI-compatible server: time to first token, inter-token latency, tokens a second.

    python scripts/bench_serving.py --url http://127.0.0.1:7777 --concurrency 1,8,32
    python scripts/bench_serving.py --peer http://127.0.0.1:8080                      # another server beside it
    python scripts/bench_serving.py --peer llama.cpp=http://127.0.0.1:8080 \\
        --peer-command "llama-server -m model.gguf --port 8080 -np 32 -c 16384"       # started and stopped here

In a round every stream sends one request over a connection that is open already. Tokens are those that the server
counts in `usage`, or chunks with text where it counts none. The client is a bare asyncio socket reader, so that it
costs little of the machine it shares with the server. With a peer, rounds alternate between the two, the same prompts
for both, and each figure is followed by the peer's and by their ratio, ours / the peer's: above 1 is better for tok/s,
below 1 for times. While one is measured the other is idle, so start neither with threads that spin for long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

SENTENCE = "the quick brown fox jumps over a lazy dog while seven wizards quietly mix strong coffee in old town"
WORDS = SENTENCE.split()
START_LIMIT_S = 300.0


@dataclass
class Figures:
    """What was measured at one concurrency. Times in milliseconds."""

    concurrency: int
    tokens: int = 0
    elapsed_s: float = 0.0
    first_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)

    def rows(self) -> dict[str, float]:
        return {
            "tok/s": self.tokens / self.elapsed_s,
            "TTFT p50 ms": percentile(self.first_ms, 50),
            "TTFT p99 ms": percentile(self.first_ms, 99),
            "ITL p50 ms": percentile(self.gap_ms, 50),
            "ITL p99 ms": percentile(self.gap_ms, 99),
        }


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))] if ordered else float("nan")


def prompt_of(words: int, salt: int) -> str:
    """About `words` tokens, different for every salt from its first word on."""
    return f"Story {salt}: " + " ".join(WORDS[(salt * 7 + i * i) % len(WORDS)] for i in range(words))


class Stream:
    """One connection that sends a chat request and times the chunks that come back."""

    def __init__(self, url: str, model: str, arguments: argparse.Namespace) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.model = model
        self.arguments = arguments

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)

    def close(self) -> None:
        self.writer.close()

    async def run(self, salt: int, figures: Figures) -> None:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt_of(self.arguments.prompt_words, salt)}],
            "max_tokens": self.arguments.tokens,
            "temperature": self.arguments.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.arguments.ignore_eos:
            body["ignore_eos"] = True
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        started = time.perf_counter()
        self.writer.write(head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await self._read_stream(started, figures)

    async def _read_stream(self, started: float, figures: Figures) -> None:
        status = await self.reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"{status!r} {await self.reader.read(2000)!r}")
        last, chunks, counted = 0.0, 0, 0
        while not (line := await self.reader.readline()).startswith(b"data: [DONE]"):
            if not line:
                raise SystemExit("the server closed a stream before its end")
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            counted = (event.get("usage") or {}).get("completion_tokens", counted)
            if not has_text(event):
                continue
            now = time.perf_counter()
            chunks += 1
            if last:
                figures.gap_ms.append((now - last) * 1e3)
            else:
                figures.first_ms.append((now - started) * 1e3)
            last = now
        figures.tokens += counted or chunks
        while (await self.reader.readline()).strip() != b"0":
            pass
        await self.reader.readline()


def has_text(event: dict[str, Any]) -> bool:
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return bool(delta.get("content") or delta.get("reasoning_content"))


class Contender:
    """A server under measurement: its figures at one concurrency grow by rounds."""

    def __init__(self, url: str, concurrency: int, arguments: argparse.Namespace) -> None:
        self.figures = Figures(concurrency)
        self._url, self._arguments = url, arguments

    async def warm_up(self) -> None:
        await self._send(10_000, Figures(self.figures.concurrency))

    async def run_round(self, number: int) -> None:
        await self._send((1000 + number) * self.figures.concurrency, self.figures)

    async def _send(self, first_salt: int, figures: Figures) -> None:
        """A request on every stream at the same time. Connections are new: an idle one may have been closed."""
        model = self._arguments.model or await first_model(self._url)
        streams = [Stream(self._url, model, self._arguments) for _ in range(figures.concurrency)]
        for stream in streams:
            await stream.open()
        started = time.perf_counter()
        await asyncio.gather(*(stream.run(salt, figures) for salt, stream in enumerate(streams, first_salt)))
        figures.elapsed_s += time.perf_counter() - started
        for stream in streams:
            stream.close()


async def measure(urls: list[str], concurrency: int, arguments: argparse.Namespace) -> list[Figures]:
    """Figures of each server; who goes first changes with every round."""
    contenders = [Contender(url, concurrency, arguments) for url in urls]
    for contender in contenders:
        await contender.warm_up()
    for number in range(arguments.rounds):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            await contender.run_round(number)
    return [contender.figures for contender in contenders]


async def first_model(url: str) -> str:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"GET /v1/models HTTP/1.1\r\nHost: {parts.hostname}\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return str(json.loads(answer[answer.index("{") : answer.rindex("}") + 1])["data"][0]["id"])


@contextlib.contextmanager
def started_peer(command: str | None, url: str | None) -> Iterator[None]:
    """The peer that `command` starts, once it answers at `url`; stopped in the end. Without a command nothing."""
    if command is None or url is None:
        yield
        return
    started = time.perf_counter()
    process = subprocess.Popen(shlex.split(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_ready(url):
            if process.poll() is not None or time.perf_counter() - started > START_LIMIT_S:
                raise SystemExit(f"the peer does not start: {command}")
            time.sleep(0.05)
        print(f"peer ready after {time.perf_counter() - started:.1f} s")
        yield
        print(f"peer's memory after the load: {resident_mib(process.pid):,.0f} MiB")
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def is_ready(url: str) -> bool:
    with contextlib.suppress(OSError, ValueError, LookupError):
        return bool(asyncio.run(first_model(url))) and health_status(url) != 503
    return False


def health_status(url: str) -> int:
    """What GET /health answers; servers that list their models while they still load them say 503 there."""
    try:
        with urlopen(f"{url}/health", timeout=5) as answer:
            return int(answer.status)
    except HTTPError as refusal:
        return refusal.code


def resident_mib(pid: int) -> float:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


def named_url(text: str) -> tuple[str, str]:
    """NAME=URL, or a URL alone."""
    name, equals, url = text.partition("=")
    return (name, url) if equals and "://" not in name else ("peer", text)


def show(all_figures: list[Figures], names: list[str]) -> None:
    """A line a figure; of two servers, the ratio too."""
    print(f"concurrency {all_figures[0].concurrency}", flush=True)
    columns = [figures.rows() for figures in all_figures]
    for figure, value in columns[0].items():
        others = [f"   {name} {column[figure]:10.1f}" for name, column in zip(names[1:], columns[1:], strict=True)]
        ratios = [f"   ratio {value / column[figure]:5.2f}" for column in columns[1:]]
        print(f"  {figure:12} {value:10.1f}" + "".join(others + ratios), flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:7777")
    parser.add_argument("--peer", metavar="[NAME=]URL", help="another server, measured in the same run")
    parser.add_argument("--peer-command", metavar="COMMAND", help="starts the peer, which is stopped in the end")
    parser.add_argument("--model", help="default: the first one each server lists")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=128, help="tokens generated a request")
    parser.add_argument("--prompt-words", type=int, default=30, help="30 words make a prompt of about 40 tokens")
    parser.add_argument("--rounds", type=int, default=2, help="requests a stream, after one to warm up")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--ignore-eos", action="store_true", help="send ignore_eos, where the server knows it")
    arguments = parser.parse_args()
    if arguments.peer_command and not arguments.peer:
        parser.error("--peer-command needs --peer URL, where the peer will answer")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    peer = named_url(arguments.peer) if arguments.peer else None
    servers = {"ours": arguments.url} | dict([peer] if peer else [])
    with started_peer(arguments.peer_command, peer[1] if peer else None):
        for concurrency in map(int, arguments.concurrency.split(",")):
            show(asyncio.run(measure(list(servers.values()), concurrency, arguments)), list(servers))


if __name__ == "__main__":
    main()
