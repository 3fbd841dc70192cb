"""A really started server program, on the embedded model, shared by the tests of a session."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
START_LIMIT_S = 240.0


@dataclass
class Program:
    """A running `server.py`: its URL, its process, and what it has printed."""

    process: subprocess.Popen[str]
    url: str = ""
    lines: list[str] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)

    def read_output(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if match := re.search(r"ready .* on (http://\S+)", line):
                self.url = match[1]
                self.ready.set()
        self.ready.set()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def start_program(*arguments: str) -> Program:
    """Start `server.py` on a free port and wait until it is ready."""
    command = [sys.executable, "server.py", "--port", "0", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment)
    program = Program(process)
    threading.Thread(target=program.read_output, daemon=True).start()
    if not program.ready.wait(START_LIMIT_S) or not program.url:
        process.kill()
        raise RuntimeError("the server did not start:\n" + "\n".join(program.lines))
    return program


@pytest.fixture(scope="session")
def program() -> Iterator[Program]:
    program = start_program("--max-model-len", "2048", "--kv-cache-mib", "256")
    yield program
    program.stop()
