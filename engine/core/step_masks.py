"""The grammar masks of a step, filled in a thread of their own while the forward pass keeps the engine thread.

    engine thread   begin N | launch N ................ | of N | sample N
    mask thread              ... fill N, off the GIL ...

The thread takes one batch after the other, and a matcher is advanced only after its batch was sampled. So whoever has
the masks of a batch knows that no earlier ones are being filled any more, also where a batch was launched in vain.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from engine.core.grammar import BitmaskFiller
from engine.core.scheduler_output import SchedulerOutput


def _roam() -> None:
    """Let this thread run wherever the main one may: it began where the thread that computes may be tied to."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))


class StepMasks:
    """Fills the masks of one batch at a time; without a `filler` there are none. Engine thread alone."""

    def __init__(self, filler: BitmaskFiller | None) -> None:
        self._filler = filler
        self._thread = ThreadPoolExecutor(1, "masks", _roam)  # starts with the first batch that needs masks
        self._begun: tuple[SchedulerOutput, Future[Any]] | None = None

    @property
    def are_made(self) -> bool:
        """Whether sequences may be constrained."""
        return self._filler is not None

    def begin(self, batch: SchedulerOutput) -> None:
        """Start to fill the masks of `batch`; its matchers may not be touched until `of` has returned them."""
        fill = self._filling(batch)
        self._begun = None if fill is None else (batch, self._thread.submit(fill))

    def of(self, batch: SchedulerOutput) -> Any | None:
        """The masks of the sampling rows of `batch`, or None when every row may have every token."""
        begun, self._begun = self._begun, None
        if begun is not None:
            masks = begun[1].result()
            if begun[0] is batch:
                return masks
        fill = self._filling(batch)
        return None if fill is None else fill()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._thread.shutdown()

    def _filling(self, batch: SchedulerOutput) -> Callable[[], Any] | None:
        """What fills the masks of `batch`; None when no row needs one."""
        matchers = [item.sequence.matcher for item in batch.scheduled if item.samples]
        binding = [None if matcher is None or matcher.allows_everything() else matcher for matcher in matchers]
        if self._filler is None or not any(matcher is not None for matcher in binding):
            return None
        return partial(self._filler.fill, binding)
