"""What every test relies on: a loop that does not count the time it had no CPU for, and examples without deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.lived_time import LivedTimeLoop

settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]]:
    return {"lived": LivedTimeLoop}


@pytest.fixture
async def leaping_time() -> AsyncIterator[None]:
    """Whoever sleeps is woken at once and in order, and finds that the time has passed. For tests without sockets."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LivedTimeLoop)
    loop.selector.leaps = True
    yield
    loop.selector.leaps = False
