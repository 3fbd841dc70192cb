"""How many threads a machine is given, and where they stay."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from engine.config import ConfigError
from engine.runner.cores import cpus_to_pin, usable_cores


class Machine:
    """A folder that looks like a machine's: cores as lists of CPUs, and a control group."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, cores: Iterable[list[int]]) -> None:
        self.system, self.groups, self.membership = folder / "cpu", folder / "cgroup", folder / "self"
        cpus = {cpu for core in cores for cpu in core}
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cpus)
        for core in cores:
            for cpu in core:
                self.write(self.system / f"cpu{cpu}/topology/thread_siblings_list", ",".join(map(str, core)))

    def limit(self, membership: str, files: dict[str, str]) -> None:
        self.write(self.membership, membership)
        for name, text in files.items():
            self.write(self.groups / name, text)

    @property
    def usable_cores(self) -> int:
        return usable_cores(self.system, self.groups, self.membership)

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


FOUR_CORES = ([0, 4], [1, 5], [2, 6], [3, 7])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch, FOUR_CORES)


def test_the_threads_of_a_core_count_once(machine: Machine) -> None:
    assert machine.usable_cores == 4


def test_cpus_that_the_process_may_not_use_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch, FOUR_CORES)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5, 6})
    assert machine.usable_cores == 2
    assert cpus_to_pin(2, machine.system) == [1, 6]


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/", {"cpu.max": "250000 100000"}, 2),
        ("0::/", {"cpu.max": "max 100000"}, 4),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "900000 100000"}, 4),
        ("0::/system.slice/it.service", {"system.slice/it.service/cpu.max": "300000 100000"}, 3),
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ("0::/not/seen/from/here", {"cpu.max": "200000 100000"}, 2),
        ("1:cpu,x:/a", {"cpu,x/a/cpu.cfs_quota_us": "200000", "cpu,x/a/cpu.cfs_period_us": "100000"}, 2),
        ("1:cpu:/\n0::/", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ("1:memory:/\n0::/a", {"unified/a/cpu.max": "100000 100000"}, 1),
    ],
)  # fmt: skip
def test_the_quota_of_a_control_group_limits_the_threads(
    machine: Machine, membership: str, files: dict[str, str], expected: int
) -> None:
    machine.limit(membership, files)
    assert machine.usable_cores == expected


def test_threads_are_pinned_to_cores_of_their_own_as_long_as_there_are_any(machine: Machine) -> None:
    assert cpus_to_pin(4, machine.system) == [0, 1, 2, 3]
    assert cpus_to_pin(6, machine.system) == [0, 1, 2, 3, 4, 5]


def test_more_threads_than_cpus_cannot_be_pinned(machine: Machine) -> None:
    with pytest.raises(ConfigError, match="--pin-threads needs a CPU for each of 9 threads, and 8 may be used"):
        cpus_to_pin(9, machine.system)


def test_a_system_without_affinity_is_told_so(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(ConfigError, match="--pin-threads cannot work here"):
        cpus_to_pin(1, machine.system)


def test_this_machine_has_a_core_and_a_cpu_to_pin_to() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
    assert cpus_to_pin(1)[0] in os.sched_getaffinity(0)
