"""scripts/gpu_check.py: every item on a GPU that is the CPU, its table, its limits, and what it says without a GPU."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.runner import flashinfer_attention
from engine.runner.flashinfer_attention import FlashInferAttention
from engine.runner.kernels.cuda_attention import KernelAttention
from engine.runner.kv_shape import KVShape
from scripts import gpu_check, gpu_check_kernels, gpu_check_place, gpu_check_server, gpu_check_steps
from scripts.gpu_check_place import Failed, Place, Skipped
from tests.engine.runner import fake_flashinfer
from tests.engine.runner.fake_gpu import FakeGpu, ImmediateLane
from tests.engine.runner.fake_machine import Gpu
from tests.engine.runner.kernels.shim import Shim, require_cpp_compiler
from tests.engine.runner.test_memory_profile import MIB

ROOT = Path(__file__).parents[3]
SMALLER: dict[Any, dict[str, Any]] = {
    gpu_check: {"BATCHES": (1, 3)},
    gpu_check_place: {"BATCHES": (1, 3), "PREFILL": 40, "COPY_BYTES": 2**20, "PRODUCT_SIZE": 64},
    gpu_check_steps: {"PREFILL": 40, "CONTEXT": 20, "STEPS": 4, "ROUNDS": 1, "MANY": 3},
    gpu_check_kernels: {
        "VOCAB": 1000,
        "ROWS": 10,
        "ROUNDS": 2,
        "DECODES": (1, 17, 130),
        "CHUNKS": ((0, 30), (100, 30), (33, 2)),
        "SHAPES_TRIED": ((64, 3, torch.float16),),
        "LATENT_TRIED": [(KVShape(1, 1, 80, torch.bfloat16, 64), 1)],
        "EXPERTS_TRIED": (6, 2, 48, 24),
        "TOKENS_TRIED": (1, 9),
        "CudaLane": ImmediateLane,
    },
}


@pytest.fixture
def place(gpu: Gpu, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A place with a GPU, where everything is smaller."""
    for module, values in SMALLER.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(Place, "launcher", property(lambda place: Shim(libraries)))
    monkeypatch.setattr(gpu_check_steps, "CudaMemory", lambda device: gpu.memory)
    gpu.memory.others = 15_500 * MIB  # so that the cache of 80% is small
    device: Any = FakeGpu()
    return Place(device, ["Tiny-DeepSeek"])


def lines_of(output: str) -> dict[str, tuple[str, str]]:
    """Outcome and finding by the names of the table's items."""
    lines = [line for line in output.splitlines() if line.startswith(("PASS", "FAIL", "SKIP"))]
    return {line[9:37].strip(): (line[:4], line.split(" s  ", 1)[1]) for line in lines}


def test_every_item_comes_to_its_end_on_a_gpu_and_fails_by_its_aim_alone(
    place: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = gpu_check_server.measure
    monkeypatch.setattr(gpu_check_server, "measure", lambda device, shape: measure("cpu", shape))
    status = gpu_check.run_all(place, ("",), 1000)
    captured = capsys.readouterr()
    found = lines_of(captured.out)
    assert len(found) == 6 + 7
    assert status == any(outcome == "FAIL" for outcome, _ in found.values())
    for name in ("kernels bitmask", "kernels sampler", "kernels attention", "kernels experts", "server", "roofs"):
        assert found[name][0] == "PASS", found[name]
    assert found["graphs Tiny-DeepSeek"] == ("PASS", "32 tokens, all equal")
    assert found["logits Tiny-DeepSeek"][0] == found["decode Tiny-DeepSeek x3"][0] == "PASS", found
    assert "CUDA graphs: forward and sampling of 1, 2, 3 sequences" in captured.err
    assert "experts: by the kernel" in captured.err
    assert not [line for line in found.values() if line[0] == "FAIL" and not ("aim" in line[1] or "given" in line[1])]
    assert captured.out.splitlines()[0].startswith("Fake GPU, torch ")
    assert captured.out.splitlines()[-1].endswith(" s")


def test_memory_beyond_the_share_that_was_given_fails(gpu: Gpu, place: Any) -> None:
    place.runner("Tiny")
    gpu.memory.others = 15_900 * MIB
    assert "79.5% of the memory in use" in gpu_check_steps.check_memory(place, "Tiny")
    gpu.memory.others = 17_000 * MIB
    with pytest.raises(Failed, match=r"85.0% of the memory in use, .* given 80%"):
        gpu_check_steps.check_memory(place, "Tiny")


def test_graphs_that_change_a_token_fail(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = gpu_check_steps.advance

    def wrong(runner: Any, sequences: Any, steps: int) -> None:
        advance(runner, sequences, steps)
        sequences[5].token_ids[-1] += runner.replays_graphs

    monkeypatch.setattr(gpu_check_steps, "advance", wrong)
    with pytest.raises(Failed, match="the tokens differ"):
        gpu_check_steps.check_graphs(place, "Tiny")


def fails() -> str:
    raise Failed("too slow")


def is_missing() -> str:
    raise Skipped("not installed")


def crashes() -> str:
    raise ValueError("wrong\nin two lines")


def dawdles() -> str:
    while True:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("checks", "status", "outcomes"),
    [
        ([lambda: "fine"], 0, ["PASS"]),
        ([lambda: "fine", is_missing], 2, ["PASS", "SKIP"]),
        ([is_missing, fails], 1, ["SKIP", "FAIL"]),
        ([crashes, lambda: "fine"], 1, ["FAIL", "PASS"]),
        ([dawdles, lambda: "too late"], 1, ["FAIL", "SKIP"]),
    ],
)
def test_the_status_tells_of_the_worst_and_the_time_is_limited(
    checks: list[Callable[[], str]], status: int, outcomes: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    items = [gpu_check.Item("a", f"item {number}", check) for number, check in enumerate(checks)]
    monkeypatch.setattr(gpu_check, "items_of", lambda place: items)
    limit_s = 0.2 if dawdles in checks else 100.0
    assert gpu_check.run_all(Place(torch.device("cpu"), []), ("",), limit_s) == status
    printed = capsys.readouterr().out
    assert [outcome for outcome, _ in lines_of(printed).values()] == outcomes
    assert ("ValueError: wrong\n" in printed) is (crashes in checks)


CARRIED = ("llguidance", "gguf", "jsonschema_rs", "prometheus_client", "xxhash")


def run(*arguments: str, without: tuple[str, ...] = CARRIED) -> subprocess.CompletedProcess[str]:
    """The script, on a machine that lacks modules; by default those that kernels and models do not need."""
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({without}));"
        f"sys.argv[1:] = {list(arguments)}; runpy.run_path('scripts/gpu_check.py', run_name='__main__')"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_everything_is_skipped_and_the_status_says_so() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, "SKIP  everything: torch sees no NVIDIA GPU\n")


def test_without_what_every_item_needs_the_script_says_what_to_carry() -> None:
    done = run(without=("msgspec",))
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("SKIP  everything: import of msgspec halted")
    assert "pip download" in done.stdout


def test_a_try_on_the_cpu_passes_what_needs_no_gpu_and_skips_the_rest() -> None:
    done = run("--device", "cpu", "--models", "Tiny", "--checks", "logits,kernels sampler,decode Tiny x8")
    outcomes = {name: outcome for name, (outcome, _) in lines_of(done.stdout).items()}
    assert outcomes == {"kernels sampler": "SKIP", "logits Tiny": "PASS", "decode Tiny x8": "PASS"}, done.stderr
    assert done.returncode == 2


def test_the_comparisons_of_attention_hold_for_what_computes_it_here(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_cpp_compiler()
    monkeypatch.setattr(flashinfer_attention, "_WORKSPACE_BYTES", 4096)
    monkeypatch.setattr(gpu_check_kernels, "DECODES", (1, 17, 130))
    monkeypatch.setattr(gpu_check_kernels, "CHUNKS", ((0, 30), (100, 30), (33, 2)))
    there, shape = Place(torch.device("cpu"), []), KVShape(1, 2, 64, torch.float16)
    kernel = KernelAttention(Shim(libraries, threads=128), shape, 3, there.device)
    library = FlashInferAttention(fake_flashinfer, shape, 3, 16, there.device)
    for paged in (kernel, library):
        assert gpu_check_kernels.attention_error(there, paged, shape, 3) < 0.01
