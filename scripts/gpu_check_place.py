"""Where gpu_check.py checks: the device, models loaded on it, its bandwidth and peak; and what a check may end with."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import Sequence
from engine.runner.kernels.cuda_library import CudaLauncher
from engine.runner.model_runner import ModelRunner
from engine.runner.weights.errors import ModelLoadError
from scripts.gpu_check_models import SHAPES, RandomFiles

BATCHES, PREFILL = (1, 8, 64, 256), 2048
COPY_BYTES, PRODUCT_SIZE = 2**30, 8192  # of what measures a card
UTILIZATION = 0.8  # of the memory; what is measured beside the model needs some
GREEDY = SamplingParams(max_tokens=10**6, temperature=0)


class Skipped(Exception):
    """The item cannot be checked here; the message says why."""


class Failed(Exception):
    """The item is not as it should be; the message says what was found."""


@dataclass
class Place:
    """Where the checks run; `models` are the shapes asked for."""

    device: torch.device
    models: list[str]
    loaded: dict[tuple[str, bool], ModelRunner] = field(default_factory=dict)

    def runner(self, name: str, *, eager: bool = False) -> ModelRunner:
        """The model of a shape; another one that is loaded makes room first."""
        if (name, eager) not in self.loaded:
            self.release()
            files: Any = RandomFiles(SHAPES[name], self.device)
            torch.manual_seed(0)
            try:
                self.loaded[name, eager] = ModelRunner.load(
                    files, self.settings(eager=eager), partial(print, f"    {name}:", file=sys.stderr)
                )
            except (ModelLoadError, torch.OutOfMemoryError) as problem:
                raise Skipped(str(problem)) from problem
        return self.loaded[name, eager]

    def settings(self, *, eager: bool) -> EngineConfig:
        """How models are loaded."""
        return EngineConfig(
            device=self.device.type,
            cpu_kernels="off",
            max_num_seqs=max(BATCHES),
            max_num_batched_tokens=PREFILL,
            max_prefill_chunk_tokens=None,
            gpu_memory_utilization=UTILIZATION,
            enforce_eager=eager,
            kv_cache_mib=None if self.device.type == "cuda" else 512,
        )

    def release(self) -> None:
        for runner in self.loaded.values():
            runner.close()
        self.loaded.clear()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object], times: int) -> float:
        """Seconds a call of `work` takes."""
        work()
        self.wait()
        started = time.perf_counter()
        for _ in range(times):
            work()
        self.wait()
        return (time.perf_counter() - started) / times

    @property
    def launcher(self) -> CudaLauncher:
        if self.device.type != "cuda":
            raise Skipped("the kernels need a GPU")
        try:
            return CudaLauncher(self.device)
        except ImportError as problem:
            raise Skipped("cupy is not installed") from problem

    @cached_property
    def copy_bandwidth(self) -> float:
        """Bytes a second, read and written, of a large copy."""
        size = COPY_BYTES if self.device.type == "cuda" else 2**26
        source = torch.zeros(size, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * size / self.seconds(lambda: target.copy_(source), 10)

    @cached_property
    def product_peak(self) -> float:
        """Operations a second of a large matrix product."""
        size = PRODUCT_SIZE if self.device.type == "cuda" else 512
        left = torch.randn(size, size, dtype=torch.bfloat16, device=self.device)
        right = torch.randn_like(left)
        return 2 * size**3 / self.seconds(lambda: left @ right, 10)


def make_sequence(number: int, length: int, params: SamplingParams = GREEDY) -> Sequence:
    return Sequence(f"check-{number}", [number % 97 + 1] * length, length, params, number, frozenset(), 10**6, number)


def prefill(runner: ModelRunner, sequence: Sequence) -> SchedulerOutput:
    sequence.block_table = list(range(-(-sequence.num_tokens // runner.block_size)))
    return SchedulerOutput([ScheduledSequence(sequence, 0, sequence.num_tokens, True)])
