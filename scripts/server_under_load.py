"""A server program that load scripts start, question and stop; and the raw HTTP that they throw at it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
START_LIMIT_S = 180.0
INLINE_BYTES = "200"
"""So that some bodies are prepared on the event loop, and most in workers."""
AT_REST = ("server_tasks", "process_open_fds")
"""Figures that must be the same before and after."""
NOTHING = (
    'server_admitted_requests{place="preparing"}', 'server_admitted_requests{place="queued"}',
    'server_admitted_requests{place="running"}', "engine_running_sequences", "engine_waiting_sequences",
    "engine_kv_blocks_used", "server_queued_tokens",
)  # fmt: skip
"""Figures that must be zero when nothing is asked."""


class ServerUnderLoad:
    """A running `server.py`, its metrics, its workers and its memory."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, url: str) -> None:
        self.process = process
        self.log = log
        self.url = url
        host, port = url.removeprefix("http://").rsplit(":", 1)
        self.address = (host, int(port))

    def metrics(self) -> dict[str, float]:
        with urlopen(self.url + "/metrics", timeout=30) as answer:
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def children(self) -> list[int]:
        """Process IDs of the workers."""
        found = []
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(pid) for pid in path.read_text().split()]
        return found

    def workers(self) -> list[int]:
        """The preparation workers among the children."""
        return [pid for pid in self.children() if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def memory_mib(self) -> float:
        """Resident memory of the server without its workers."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(match[1]) / 1024 if match else 0.0

    def at_rest(self) -> dict[str, float]:
        figures = self.metrics()
        return {name: figures[name] for name in AT_REST}

    def leaks(self, before: dict[str, float], limit_s: float = 30.0) -> list[str]:
        """What is not as before, although the server had `limit_s` to come to rest."""
        deadline = time.monotonic() + limit_s
        while True:
            figures = self.metrics()
            found = [f"{name} is {figures[name]:g}" for name in NOTHING if figures.get(name)]
            found += [
                f"{name} was {before[name]:g}, is {figures[name]:g}" for name in AT_REST if figures[name] > before[name]
            ]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.2)


@contextlib.contextmanager
def server_under_load(*options: str) -> Iterator[ServerUnderLoad]:
    """Start `server.py` with `options` on a free port; stops it in the end. Its log is shown when it fails."""
    with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
        always = ["--port", "0", "--log-level", "warning", "--inline-preparation-bytes", INLINE_BYTES]
        command = [sys.executable, "server.py", *always, *options]
        process = subprocess.Popen(command, cwd=ROOT, stderr=log, stdout=subprocess.DEVNULL)
        try:
            yield ServerUnderLoad(process, Path(log.name), _wait_for_url(process, Path(log.name)))
            if process.poll() is not None:
                raise SystemExit("the server ended:\n" + Path(log.name).read_text()[-4000:])
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for_url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        if match := re.search(r"ready .* on (http://\S+)", log.read_text()):
            return match[1]
        time.sleep(0.1)
    raise SystemExit("the server did not start:\n" + log.read_text()[-4000:])


def http_request(path: str, body: bytes, *headers: str) -> bytes:
    """A POST as bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: load", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def generating_body(path: str, text: str, max_tokens: int, stream: bool) -> dict[str, Any]:
    """A request for `path` that asks for `max_tokens` tokens."""
    body: dict[str, Any] = {"model": "m", "stream": stream}
    if path.endswith("responses"):
        return body | {"input": text, "max_output_tokens": max_tokens}
    return body | {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}


PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


async def open_connection(address: tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.wait_for(asyncio.open_connection(*address), 20)


def status_of(head: bytes) -> int:
    """The status of a response, 0 for something else."""
    match = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    return int(match[1]) if match else 0


def seed_or_now(seed: int | None) -> int:
    """`seed`, or one that is printed so that a run can be repeated."""
    chosen = int.from_bytes(os.urandom(4)) if seed is None else seed
    print(f"seed {chosen}", flush=True)
    return chosen
