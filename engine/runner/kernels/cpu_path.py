"""Whether a model runs on the CPU kernels, and a line that says so, or why not."""

from __future__ import annotations

from collections.abc import Callable

from engine.config import EngineConfig
from engine.runner.cores import cpus_to_pin, usable_cores
from engine.runner.kernels.build import BuildError, build_library
from engine.runner.kernels.cpu_library import load_library
from engine.runner.kernels.cpu_llama import CompiledLlama
from engine.runner.models.registry import architecture_of
from engine.runner.weights.model_files import ModelFiles

RUN_LENGTH = 16  # positions of a sequence that lie together in the kernels' KV cache
_DTYPES = ("auto", "bfloat16")  # the KV cache's; another number format is asked for when exactly that is wanted


def open_compiled(files: ModelFiles, settings: EngineConfig, say: Callable[[str], None]) -> CompiledLlama | None:
    """The model on the CPU kernels, its weights not read yet; None where torch computes it.

    Builds the library when it is not there; without a compiler, one line says so. Raises `ModelLoadError` for tensors
    that do not fit the configuration, `ConfigError` for threads that cannot be pinned.
    """
    wanted = settings.cpu_kernels == "auto" and settings.dtype in _DTYPES
    if not wanted or not architecture_of(files.config).read(files.config).is_plain:
        return None
    if settings.block_size % RUN_LENGTH:
        say(f"CPU kernels: a block must hold a multiple of {RUN_LENGTH} tokens; computing with torch, which is slower")
        return None
    try:
        path, seconds = build_library()
        library = load_library(path)
    except (BuildError, OSError) as problem:
        say(f"CPU kernels: {problem}; computing with torch, which is slower")
        return None
    threads = settings.num_threads or usable_cores()
    cpus = cpus_to_pin(threads) if settings.pin_threads else None
    model = CompiledLlama(library, files.config, files.open_tensors(), threads=threads, cpus=cpus)
    say(f"CPU kernels: {model.instruction_set}" + (f", built in {seconds:.1f} s" if seconds else ""))
    return model
