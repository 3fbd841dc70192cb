"""Cuts, a fuzz and a soak in their short forms; the scripts have the long ones. Nothing may leak, hang or be a 5xx."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("cuts.py", "--seconds", "60", "--seed", "1"),
        ("fuzz_server.py", "--seconds", "60", "--seed", "2"),
        ("soak.py", "--seconds", "60", "--backend", "mock", "--seed", "3"),
    ],
    ids=lambda command: command[0],
)
def test_nothing_is_left_of_clients_that_misbehave(command: tuple[str, ...]) -> None:
    script, *arguments = command
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
