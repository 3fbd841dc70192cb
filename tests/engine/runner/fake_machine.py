"""A machine with a GPU that is the CPU: models are loaded and run on it as on a real one, kernels by the shim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.runner import flashinfer_attention, memory_profile, model_runner
from engine.runner.kernels import cuda_path
from engine.runner.model_runner import ModelRunner
from engine.runner.weights.model_files import ModelFiles
from tests.engine.runner.fake_gpu import FakeGpu, ImmediateLane
from tests.engine.runner.kernels.shim import Shim, require_cpp_compiler
from tests.engine.runner.test_graph_runner import FakeGraphs
from tests.engine.runner.test_memory_profile import MIB, FakeMemory

SETTINGS: dict[str, Any] = {
    "device": "cuda",
    "dtype": "float16",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 24,
    "gpu_memory_utilization": 0.04,
    "block_size": 8,
    "max_model_len": 64,
}


class Gpu:
    """What of a GPU is looked at: its memory, of which nothing is taken, and the graphs it recorded."""

    def __init__(self, libraries: Path) -> None:
        self.memory, self.graphs, self.lines = FakeMemory(weights=4 * MIB, cached=0), FakeGraphs(), list[str]()
        self.shim = Shim(libraries, threads=128)

    def load(self, files: ModelFiles, **settings: Any) -> ModelRunner:
        return ModelRunner.load(files, EngineConfig(**SETTINGS | settings), self.lines.append)

    def saying(self, beginning: str) -> list[str]:
        return [line for line in self.lines if line.startswith(beginning)]


def plug_in(monkeypatch: pytest.MonkeyPatch, libraries: Path) -> Gpu:
    """Have the program find a GPU."""
    require_cpp_compiler()
    found = Gpu(libraries)
    monkeypatch.setattr(model_runner, "resolve_device", lambda name: FakeGpu())
    monkeypatch.setattr(model_runner, "use_threads", lambda wanted: 1)  # as many as the test has
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Fake GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: None)
    monkeypatch.setattr(cuda_path, "open_launcher", lambda device, say: found.shim)
    for module in (cuda_path, model_runner):
        monkeypatch.setattr(module, "CudaLane", ImmediateLane)
    for module in (memory_profile, model_runner):
        monkeypatch.setattr(module, "CudaMemory", lambda device: found.memory)
    monkeypatch.setattr(memory_profile, "available_memory", lambda device: found.memory.free_and_total()[0])
    monkeypatch.setattr(model_runner, "CudaGraphs", lambda: found.graphs)
    monkeypatch.setattr(flashinfer_attention.Planned, "_mark", lambda self: None)
    monkeypatch.setattr(flashinfer_attention, "_WORKSPACE_BYTES", 4096)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    return found
