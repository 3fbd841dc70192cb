"""scripts/gpu_check.py where there is no GPU: it says so, and what needs none can still be tried."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.runner import flashinfer_attention
from engine.runner.flashinfer_attention import FlashInferAttention
from engine.runner.kernels.cuda_attention import KernelAttention
from engine.runner.kv_shape import KVShape
from scripts import gpu_check_kernels
from scripts.gpu_check_place import Place
from tests.engine.runner import fake_flashinfer
from tests.engine.runner.kernels.shim import Shim, require_cpp_compiler

ROOT = Path(__file__).parents[4]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The script, on a machine that lacks what kernels and models do not need."""
    code = (
        "import runpy, sys; sys.modules.update(dict.fromkeys(['msgspec', 'llguidance', 'gguf', 'jsonschema_rs']));"
        f"sys.argv[1:] = {list(arguments)}; runpy.run_path('scripts/gpu_check.py', run_name='__main__')"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_everything_is_skipped_and_the_status_says_so() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, "SKIP  everything: torch sees no NVIDIA GPU\n")


def test_a_try_on_the_cpu_passes_what_needs_no_gpu_and_skips_the_rest() -> None:
    done = run("--device", "cpu", "--models", "Tiny", "--checks", "logits,kernels sampler,decode Tiny x8")
    outcomes = [line.split()[0] for line in done.stdout.splitlines() if line.startswith(("PASS", "FAIL", "SKIP"))]
    assert outcomes == ["SKIP", "PASS", "PASS"], done.stdout + done.stderr
    assert done.returncode == 2


def test_the_comparisons_of_attention_hold_for_what_computes_it_here(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_cpp_compiler()
    monkeypatch.setattr(flashinfer_attention, "_WORKSPACE_BYTES", 4096)
    monkeypatch.setattr(gpu_check_kernels, "DECODES", (1, 17, 130))
    monkeypatch.setattr(gpu_check_kernels, "CHUNKS", ((0, 30), (100, 30), (33, 2)))
    place, shape = Place(torch.device("cpu"), []), KVShape(1, 2, 64, torch.float16)
    kernel = KernelAttention(Shim(libraries, threads=128), shape, 3, place.device)
    library = FlashInferAttention(fake_flashinfer, shape, 3, 16, place.device)
    for paged in (kernel, library):
        assert gpu_check_kernels.attention_error(place, paged, shape, 3) < 0.01
