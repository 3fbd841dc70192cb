"""The loader without a GPU: what it hands to cupy, and what it says where there is no cupy or no driver."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine.runner.kernels import cuda_path
from engine.runner.kernels.cuda_library import CudaLauncher, open_launcher
from engine.runner.kernels.cuda_path import open_kernels
from engine.runner.kernels.cuda_sources import APPLY_BITMASK, SAMPLE_ROWS
from tests.engine.runner.kernels.shim import Shim, require_cpp_compiler

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class FakeCupy:
    """Keeps what was compiled and launched."""

    def __init__(self) -> None:
        self.compiled: list[dict[str, Any]] = []
        self.launches: list[tuple[Any, ...]] = []
        self.cuda = SimpleNamespace(Stream=SimpleNamespace(from_external=lambda stream: f"stream of {stream}"))

    def RawModule(self, **settings: Any) -> SimpleNamespace:
        self.compiled.append(settings)
        return SimpleNamespace(get_function=self._function)

    def _function(self, name: str) -> Any:
        def launch(grid: Any, block: Any, arguments: Any, stream: Any) -> None:
            self.launches.append((name, grid, block, arguments, stream))

        launch.attributes = {}  # type: ignore[attr-defined]
        return launch


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    streams = iter(["the usual one", "the capturing one"])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: next(streams))
    return fake


def test_a_source_is_compiled_once_and_tensors_go_by_address_to_the_stream_of_now(cupy: FakeCupy) -> None:
    launcher = CudaLauncher(GPU)
    tensor = torch.zeros(4)
    for _ in range(2):
        launcher.launch(APPLY_BITMASK, "apply_bitmask", (2, 3, 1), 256, (tensor, np.int32(5), None))
    arguments = (np.uint64(tensor.data_ptr()), np.int32(5), np.uint64(0))
    assert cupy.launches == [
        ("apply_bitmask", (2, 3, 1), (256, 1, 1), arguments, "stream of the usual one"),
        ("apply_bitmask", (2, 3, 1), (256, 1, 1), arguments, "stream of the capturing one"),
    ]
    assert [type(argument) for argument in cupy.launches[0][3]] == [np.uint64, np.int32, np.uint64]
    assert [settings["code"] for settings in cupy.compiled] == [APPLY_BITMASK.text]
    assert launcher.num_processors == 132


def test_the_samplers_kernels_are_loaded_at_start(cupy: FakeCupy) -> None:
    lines: list[str] = []
    assert open_launcher(GPU, lines.append) is not None
    assert [settings["code"] for settings in cupy.compiled] == [APPLY_BITMASK.text, SAMPLE_ROWS.text]
    assert lines == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cupy_or_a_driver_one_line_says_that_torch_does_the_work() -> None:
    lines: list[str] = []
    assert open_launcher(GPU, lines.append) is None
    (line,) = lines
    assert "torch does their work, which is slower" in line


def test_on_a_cpu_nothing_is_said() -> None:
    lines: list[str] = []
    assert open_kernels(CPU, lines.append) is None
    assert lines == []


class Wrong:
    """A launcher whose kernels do nothing, or fail."""

    num_processors = 1

    def __init__(self, problem: Exception | None) -> None:
        self._problem = problem

    def launch(self, *arguments: Any) -> None:
        if self._problem:
            raise self._problem


@pytest.mark.parametrize(
    ("problem", "reason"),
    [(None, "the results differ from torch's"), (RuntimeError("no image\nfor this GPU"), "a launch fails: no image")],
)
def test_kernels_that_do_not_prove_themselves_are_not_used(
    problem: Exception | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    wrong = Wrong(problem)
    monkeypatch.setattr(cuda_path, "open_launcher", lambda device, say: wrong)
    assert open_kernels(CPU, lines.append) is None
    assert lines == [f"GPU kernels: {reason}; torch does their work, which is slower"]


def test_kernels_that_prove_themselves_are_used(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_cpp_compiler()
    lines: list[str] = []
    shim = Shim(libraries, threads=128)
    monkeypatch.setattr(cuda_path, "open_launcher", lambda device, say: shim)
    assert open_kernels(CPU, lines.append) is shim
    assert lines == ["GPU kernels: sampling by the kernel"]
