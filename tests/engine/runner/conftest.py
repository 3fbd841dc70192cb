"""Where the CUDA sources are compiled for the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that keeps the compiled sources of a session."""
    return tmp_path_factory.mktemp("cuda")
