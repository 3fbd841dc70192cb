#!/usr/bin/env python3
"""Measure a running OpenAI-compatible server: time to first token, inter-token latency, tokens a second.

    python scripts/bench_serving.py --url http://127.0.0.1:7777 --concurrency 1,8,32
    python scripts/bench_serving.py --url http://127.0.0.1:7777 --peer http://127.0.0.1:8080    # ratios in one run

Every stream is one request at a time over a kept connection; a token is a streamed chunk with text. The client is a
bare asyncio socket reader, so that it costs little of the machine it shares with the server. Without `--peer` it
prints measurements, with it also the ratio for each figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

SENTENCE = "the quick brown fox jumps over a lazy dog while seven wizards quietly mix strong coffee in old town"
WORDS = SENTENCE.split()


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
    """One kept connection that sends chat requests and times the chunks that come back."""

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
        last = 0.0
        while True:
            line = await self.reader.readline()
            if line.startswith(b"data: [DONE]"):
                break
            if not (line.startswith(b"data: {") and has_text(line)):
                continue
            now = time.perf_counter()
            figures.tokens += 1
            if last:
                figures.gap_ms.append((now - last) * 1e3)
            else:
                figures.first_ms.append((now - started) * 1e3)
            last = now
        while (await self.reader.readline()).strip() != b"0":
            pass
        await self.reader.readline()


def has_text(line: bytes) -> bool:
    choices = json.loads(line[6:]).get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return bool(delta.get("content") or delta.get("reasoning_content"))


async def measure(url: str, concurrency: int, arguments: argparse.Namespace) -> Figures:
    model = arguments.model or await first_model(url)
    figures = Figures(concurrency)
    warm_up = Figures(concurrency)

    async def one(index: int) -> None:
        stream = Stream(url, model, arguments)
        await stream.open()
        await stream.run(10_000 + index, warm_up)
        await barrier.wait()
        for turn in range(arguments.rounds):
            await stream.run(concurrency * 1000 + turn * concurrency + index, figures)
        stream.close()

    async def clock() -> None:
        await barrier.wait()
        figures.elapsed_s = -time.perf_counter()

    barrier = asyncio.Barrier(concurrency + 1)
    await asyncio.gather(clock(), *(one(index) for index in range(concurrency)))
    figures.elapsed_s += time.perf_counter()
    return figures


async def first_model(url: str) -> str:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"GET /v1/models HTTP/1.1\r\nHost: {parts.hostname}\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return str(json.loads(answer[answer.index("{") : answer.rindex("}") + 1])["data"][0]["id"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:7777")
    parser.add_argument("--peer", help="another server, measured in the same run")
    parser.add_argument("--model", help="default: the first one the server lists")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=128, help="tokens generated a request")
    parser.add_argument("--prompt-words", type=int, default=30, help="30 words make a prompt of about 40 tokens")
    parser.add_argument("--rounds", type=int, default=2, help="requests a stream, after one to warm up")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--ignore-eos", action="store_true", help="send ignore_eos, where the server knows it")
    arguments = parser.parse_args()
    for concurrency in map(int, arguments.concurrency.split(",")):
        ours = asyncio.run(measure(arguments.url, concurrency, arguments)).rows()
        peer = asyncio.run(measure(arguments.peer, concurrency, arguments)).rows() if arguments.peer else {}
        print(f"concurrency {concurrency}")
        for name, value in ours.items():
            ratio = f"   peer {peer[name]:10.1f}   ratio {value / peer[name]:5.2f}" if peer else ""
            print(f"  {name:12} {value:10.1f}{ratio}")


if __name__ == "__main__":
    main()
