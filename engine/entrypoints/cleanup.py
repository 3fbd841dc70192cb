"""Cleanup that runs to its end, however often its task is cancelled.

`asyncio.shield` alone returns at once when its waiter is cancelled again; here the waiter stays until the
shielded work is done, and only then passes the cancellation on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


async def run_to_completion(work: Coroutine[Any, Any, Any]) -> None:
    """Await `work` to its end. A cancellation meanwhile is held back and raised after it."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            cancelled = True
    if not cancelled:
        task.result()
        return
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("cleanup failed", exc_info=error)
    raise asyncio.CancelledError
