"""Which runner a model gets: the CPU kernels where they can compute it, torch everywhere else.

torch is imported only where it computes. So a model on the CPU kernels starts in half the time, and in 200 MB less.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from engine.config import ConfigError, EngineConfig
from engine.runner.cpu_runner import CpuRunner
from engine.runner.weights.model_files import ModelFiles

if TYPE_CHECKING:
    from engine.runner.model_runner import ModelRunner

Progress = Callable[[str], None]


def load_runner(files: ModelFiles, config: EngineConfig, progress: Progress | None = None) -> CpuRunner | ModelRunner:
    """Load the model of `files` as `config` says; `progress` is told of each phase in one line.

    Raises `ModelLoadError` when the model is not supported, its weights are wrong, or memory does not suffice, and
    `ConfigError` for threads that cannot be pinned.
    """
    say = progress or (lambda line: None)
    wants_gpu = config.attention != "auto" or _computes_on_gpu(config.device)
    runner = None if wants_gpu else CpuRunner.load(files, config, say)
    if runner is not None:
        return runner
    if config.pin_threads:
        raise ConfigError("--pin-threads is for the compiled kernels on the CPU, which do not compute this model here")
    started = perf_counter()
    from engine.runner.model_runner import ModelRunner

    say(f"torch: imported in {perf_counter() - started:.2f} s")
    return ModelRunner.load(files, config, say)


def _computes_on_gpu(device: str) -> bool:
    """Raises `ModelLoadError` where a GPU is asked for that torch does not see."""
    if device == "cpu" or (device == "auto" and not _driver_sees_gpu()):
        return False
    from engine.runner.device import resolve_device

    return resolve_device(device).type == "cuda"


def _driver_sees_gpu() -> bool:
    """Whether torch is worth asking: it computes on a GPU only through NVIDIA's driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except (OSError, AttributeError):
        return False
