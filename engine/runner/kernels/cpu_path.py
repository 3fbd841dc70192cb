"""Whether a model runs on the CPU kernels, and a line that says so, or why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.config import EngineConfig
from engine.runner.kernels.build import BuildError, build_library
from engine.runner.kernels.cpu_library import load_library
from engine.runner.kernels.cpu_llama import CompiledLlama
from engine.runner.models.registry import architecture_of
from engine.runner.weights.tensors import Tensors

_DTYPES = ("auto", "bfloat16")  # the KV cache's; another number format is asked for when exactly that is wanted


def open_compiled(
    config: dict[str, Any],
    tensors: Tensors,
    settings: EngineConfig,
    device: torch.device,
    threads: int,
    say: Callable[[str], None],
) -> CompiledLlama | None:
    """The model on the CPU kernels, its weights not read yet; None where torch computes it.

    `config` is the model's, `settings` the engine's. Builds the library when it is not there; without a compiler, one
    line says so. Raises `ModelLoadError` for tensors that do not fit the configuration.
    """
    wanted = settings.cpu_kernels == "auto" and settings.dtype in _DTYPES
    if not wanted or device.type != "cpu" or not architecture_of(config).read(config).is_plain:
        return None
    try:
        path, seconds = build_library()
        library = load_library(path)
    except (BuildError, OSError) as problem:
        say(f"CPU kernels: {problem}; computing with torch, which is slower")
        return None
    model = CompiledLlama(library, config, tensors, threads=threads)
    say(f"CPU kernels: {model.instruction_set}" + (f", built in {seconds:.1f} s" if seconds else ""))
    return model
