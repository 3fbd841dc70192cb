"""The machine's memory: how much of it is free, and what the C library does with what is freed."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _KEPT_BYTES = -1, -3, 2**30


def host_memory() -> int:
    """Bytes that can still be allocated: of the machine, and of this process's control group."""
    limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
    free = _meminfo_bytes("MemAvailable")
    return free if limit is None or used is None else min(free, max(0, limit - used))


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


def first_match(path: Path, key: str) -> str:
    """What follows the colon in the first line of `path` that starts with `key`; "" where there is none."""
    if not path.exists():
        return ""
    with path.open() as lines:
        for line in lines:
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return ""


def _cgroup_bytes(name: str) -> int | None:
    path = Path("/sys/fs/cgroup") / name
    text = path.read_text().strip() if path.exists() else "max"
    return int(text) if text.isdigit() else None


def _meminfo_bytes(name: str) -> int:
    line = first_match(Path("/proc/meminfo"), name)
    return int(line.split()[0]) * 1024 if line else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
