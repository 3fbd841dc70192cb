"""The way out: drain what is open, then end it properly.

first signal ──► no new connections or requests ──► streams finish ──► the rest ends with an error event
second signal ─────────────────────────────────────────┘ (at once)
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading

from engine.entrypoints.admission import Admission
from engine.entrypoints.errors import ApiError
from engine.entrypoints.lifeline import Clock

logger = logging.getLogger("server")

ENGINE_DEATH_EXIT_CODE = 70
"""What the program ends with when its engine died, for a supervisor to start it anew (EX_SOFTWARE)."""

DEATH_LINGER_S = 2.0
"""How long a server whose engine died still answers 503 before it ends."""

_LAST_WORDS_S = 5.0

CLOSE_LIMIT_S = 15.0
"""How long workers and engine may take to close after the drain, before the program ends without them."""


class StopSignals:
    """Why the program should end: signals, or the death of the engine. Belongs to the event loop."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.exit_code = 0

    def listen(self) -> None:
        """Take over SIGINT and SIGTERM."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.on_signal)

    def on_signal(self) -> None:
        """The first one asks to end, the second to end at once."""
        if self.stop.is_set():
            self.hurry.set()
        self.stop.set()

    def on_death(self, reason: str) -> None:
        """The engine is gone: end with a code of its own, a little later."""
        logger.critical("%s; ending in %.0f s", reason, DEATH_LINGER_S)
        self.exit_code = ENGINE_DEATH_EXIT_CODE
        asyncio.get_running_loop().call_later(DEATH_LINGER_S, self.stop.set)


def end_for_certain(limit_s: float, exit_code: int) -> threading.Timer:
    """End the process in `limit_s` seconds, whatever hangs, unless it has ended by then; cancel what is returned."""

    def end() -> None:
        logger.critical("closing took longer than %g s; ending without it", limit_s)
        logging.shutdown()
        os._exit(exit_code or 1)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    return timer


async def drain(admission: Admission, clock: Clock, hurry: asyncio.Event, drain_s: float) -> None:
    """Admit nothing more, let what is open finish within `drain_s`, and end the rest with an error."""
    admission.close()
    if clock.open and drain_s:
        logger.info("waiting up to %g s for %d open requests", drain_s, len(clock.open))
        finished = asyncio.ensure_future(clock.wait_empty())
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait((finished, hurried), timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
        finished.cancel()
        hurried.cancel()
    if clock.open:
        logger.warning("ending %d requests that are still open", len(clock.open))
        clock.end_all(ApiError(503, "the server is shutting down", code="shutting_down", retry_after_s=1))
        await clock.wait_empty(_LAST_WORDS_S)
