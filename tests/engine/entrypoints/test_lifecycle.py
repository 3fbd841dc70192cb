from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from engine.entrypoints import lifecycle
from engine.entrypoints.options import ServerOptions
from engine.entrypoints.shutdown import StopSignals


async def test_a_running_program_collects_no_garbage_in_what_its_start_made(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []

    @asynccontextmanager
    async def create_server(options: ServerOptions, signals: StopSignals) -> AsyncIterator[SimpleNamespace]:
        signals.stop.set()
        yield SimpleNamespace(address="here")
        frozen.append(gc.get_freeze_count())

    monkeypatch.setattr(lifecycle, "create_server", create_server)
    monkeypatch.setattr(StopSignals, "listen", lambda self: None)
    try:
        assert await lifecycle.serve(ServerOptions()) == 0
        assert frozen[0] > 1000
    finally:
        gc.unfreeze()
