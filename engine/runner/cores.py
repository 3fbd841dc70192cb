"""The cores that this process may compute on: how many are worth a thread each, and which CPUs to stay on.

A CPU is what the system schedules on; the CPUs of one core share its arithmetic, so that a second thread there adds
nothing. A control group's quota limits the time of all threads together, and more of them than that would wait for each
other without getting done more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.config import ConfigError

SYSTEM, GROUPS, MEMBERSHIP = Path("/sys/devices/system/cpu"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cores(system: Path = SYSTEM, groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Cores that this process may keep busy all the time, at least 1."""
    cores, quota = len(_cpus_by_core(system)), _quota(groups, membership)
    return max(1, cores if quota is None else min(cores, int(quota)))


def cpus_to_pin(num_threads: int, system: Path = SYSTEM) -> list[int]:
    """A CPU for each thread, from the process's own affinity mask: one of each core first, then their siblings.

    Raises `ConfigError` where the system has no affinity, or for more threads than there are CPUs.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("--pin-threads cannot work here: this system does not let a process choose its CPUs")
    cores = _cpus_by_core(system)
    turns = max(map(len, cores))
    cpus = [core[turn] for turn in range(turns) for core in cores if turn < len(core)]
    if num_threads > len(cpus):
        raise ConfigError(f"--pin-threads needs a CPU for each of {num_threads} threads, and {len(cpus)} may be used")
    return cpus[:num_threads]


@contextmanager
def staying_on(cpu: int | None) -> Iterator[None]:
    """Keep the calling thread on `cpu` meanwhile, if one is given; threads that it starts later run anywhere."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _cpus_by_core(system: Path) -> list[list[int]]:
    """The CPUs of the process's affinity mask, those of one core together."""
    if not hasattr(os, "sched_getaffinity"):
        return [[cpu] for cpu in range(os.cpu_count() or 1)]
    cores: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = system / f"cpu{cpu}/topology/thread_siblings_list"
        cores.setdefault(siblings.read_text() if siblings.exists() else str(cpu), []).append(cpu)
    return list(cores.values())


def _quota(groups: Path, membership: Path) -> float | None:
    """CPUs' worth of time that the process's control groups allow, the least of them; None without a limit."""
    lines = membership.read_text().splitlines() if membership.exists() else []
    limits = []
    for controllers, path in (line.split(":", 2)[1:] for line in lines):
        if controllers == "" or "cpu" in controllers.split(","):
            limits += [_limit(folder) for folder in _folders(groups, controllers, path)]
    return min((limit for limit in limits if limit is not None), default=None)


def _folders(groups: Path, controllers: str, path: str) -> Iterator[Path]:
    """A group and all above it, in the places where hierarchies are mounted."""
    for root in (groups / controllers, groups / ("cpu" if controllers else "unified")):
        group = root / path.strip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _limit(group: Path) -> float | None:
    """The limit of one group, as the unified hierarchy writes it or as the older ones do."""
    words = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0].isdigit() else None


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []
