"""Where the CUDA sources are compiled for the CPU, and a GPU that is the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.engine.runner.fake_machine import Gpu


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that keeps the compiled sources of a session."""
    return tmp_path_factory.mktemp("cuda")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, libraries: Path) -> Gpu:
    from tests.engine.runner import fake_machine

    return fake_machine.plug_in(monkeypatch, libraries)
