"""Where and in which precision to compute, and how much memory there is."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

from engine.runner.weights.errors import ModelLoadError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _KEPT_BYTES = -1, -3, 2**30
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
    """Give torch `num_threads`, or one for each physical core this process may use; what was chosen."""
    chosen = num_threads or _physical_cores()
    torch.set_num_threads(chosen)
    return chosen


def keep_freed_memory() -> None:
    """Have glibc keep what a step frees for the next one, after giving back what loading left behind.

    Otherwise every large tensor of every step is mapped, faulted in page by page and unmapped again, which makes
    elementwise work on a prefill's activations several times slower. Without glibc nothing happens.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def available_memory(device: torch.device) -> int:
    """Bytes that can still be allocated: of the GPU, or of the machine and this process's control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
    free = _meminfo_bytes("MemAvailable")
    return free if limit is None or used is None else min(free, max(0, limit - used))


def _cpu_has_bfloat16() -> bool:
    flags = _first_match(Path("/proc/cpuinfo"), "flags").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _physical_cores() -> int:
    """Hyper-threads of one core count once."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text() if siblings.exists() else str(cpu))
    return max(1, len(cores))


def _cgroup_bytes(name: str) -> int | None:
    path = Path("/sys/fs/cgroup") / name
    text = path.read_text().strip() if path.exists() else "max"
    return int(text) if text.isdigit() else None


def _meminfo_bytes(name: str) -> int:
    line = _first_match(Path("/proc/meminfo"), name)
    return int(line.split()[0]) * 1024 if line else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _first_match(path: Path, key: str) -> str:
    """What follows the colon in the first line of `path` that starts with `key`; "" where there is none."""
    if not path.exists():
        return ""
    with path.open() as lines:
        for line in lines:
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return ""
