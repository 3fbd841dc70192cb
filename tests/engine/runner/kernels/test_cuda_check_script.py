"""scripts/gpu_check.py where there is no GPU: it says so, and what needs none can still be tried."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[4]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "gpu_check.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_everything_is_skipped_and_the_status_says_so() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, "SKIP  everything: torch sees no NVIDIA GPU\n")


def test_a_try_on_the_cpu_passes_what_needs_no_gpu_and_skips_the_rest() -> None:
    done = run("--device", "cpu", "--models", "Tiny", "--checks", "logits,kernels sampler,decode Tiny x8")
    outcomes = [line.split()[0] for line in done.stdout.splitlines() if line.startswith(("PASS", "FAIL", "SKIP"))]
    assert outcomes == ["SKIP", "PASS", "PASS"], done.stdout + done.stderr
    assert done.returncode == 2
