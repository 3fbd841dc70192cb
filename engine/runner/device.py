"""Where and in which precision to compute, how much memory there is, and how numbers get there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.runner.cores import usable_cores
from engine.runner.host_memory import first_match, host_memory
from engine.runner.weights.errors import ModelLoadError

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def resolve_device(name: str) -> torch.device:
    """ "auto" is the GPU where torch sees one. Raises `ModelLoadError` for a GPU that is not there."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ModelLoadError(
            "--device cuda: torch sees no NVIDIA GPU; install a CUDA build of torch, or use --device cpu"
        )
    return torch.device("cuda" if name == "cuda" or (name == "auto" and available) else "cpu")


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """ "auto" is bfloat16 where the hardware computes in it, else float16 on a GPU and float32 on a CPU."""
    if name != "auto":
        return _DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if _cpu_has_bfloat16() else torch.float32


def use_threads(num_threads: int | None) -> int:
    """Give torch `num_threads`, or one for each core this process may use; what was chosen."""
    chosen = num_threads or usable_cores()
    torch.set_num_threads(chosen)
    return chosen


def available_memory(device: torch.device) -> int:
    """Bytes that can still be allocated: of the GPU, or of the machine and this process's control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return host_memory()


def to_device(array: Any, device: torch.device) -> torch.Tensor:
    """A numpy array as a tensor on `device`: on a GPU a copy in stream order, on the CPU the array's own memory.

    The copy is from pinned memory, since one from any other may wait for all that the stream has before it.
    """
    host = torch.from_numpy(array)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def _cpu_has_bfloat16() -> bool:
    flags = first_match(Path("/proc/cpuinfo"), "flags").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags
