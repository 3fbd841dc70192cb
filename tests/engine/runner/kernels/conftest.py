"""The driver of the CPU kernels, compiled once a session for each instruction set that this machine can run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import pytest

from tests.engine.runner.kernels.building import load_driver, runnable_sets


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    """From the name of an instruction set to its driver."""
    folder = tmp_path_factory.mktemp("drivers")
    return cache(lambda instruction_set: load_driver(instruction_set, folder))


@pytest.fixture(params=runnable_sets())
def instruction_set(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def driver(drivers: Callable[[str], ctypes.CDLL], instruction_set: str) -> ctypes.CDLL:
    """The driver for each instruction set in turn."""
    return drivers(instruction_set)


@pytest.fixture
def best_driver(drivers: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    return drivers(runnable_sets()[-1])
