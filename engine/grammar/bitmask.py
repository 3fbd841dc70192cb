"""The masks of a step: one int32 word a 32 tokens, bit 1 = allowed, rows of unconstrained sequences all ones.

Two buffers take turns, so that a copy of the last step's masks may still be under way while the next ones are filled.
The rows are computed without the GIL: one after the other, or in threads where there are enough rows and cores for
that. A row takes some 10 to 100 microseconds, no more than a thread to wake up on a machine that computes models.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLExecutor, LLMatcher
from numpy.typing import NDArray

_MANY_ROWS = 4

Bitmask = NDArray[np.int32]


class BitmaskFiller:
    """Implements `engine.core.grammar.BitmaskFiller` for matchers of this package."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // 32)
        self._buffers: list[Bitmask] = [np.empty((0, self._num_words), np.int32) for _ in range(2)]
        self._num_threads = len(os.sched_getaffinity(0)) // 2
        self._executor: LLExecutor | None = None  # its threads start with the first step that needs them

    def fill(self, matchers: Sequence[Any]) -> Bitmask:
        """int32 [len(matchers), ceil(vocab_size / 32)], valid until the second next call; see the protocol."""
        rows = self._next_buffer(len(matchers))
        rows.fill(-1)
        bound = [(matcher.bound, row) for row, matcher in enumerate(matchers) if matcher and matcher.bound]
        self._compute(bound, rows)
        for row, matcher in zip(rows, matchers, strict=True):
            if matcher is not None:
                matcher.mask_exceptions(row)
        return rows

    def _compute(self, bound: list[tuple[LLMatcher, int]], rows: Bitmask) -> None:
        """Write the masks of grammars into their rows, stop tokens aside."""
        num_bytes, first_row = self._num_words * 4, rows.ctypes.data
        if len(bound) < _MANY_ROWS or self._num_threads < 2:
            for matcher, row in bound:
                matcher.unsafe_compute_mask_ptr(first_row + row * num_bytes, num_bytes)
        else:
            self._executor = self._executor or LLExecutor(self._num_threads)
            self._executor.unsafe_compute_mask_ptr(bound, first_row, num_bytes, len(rows))

    def _next_buffer(self, num_rows: int) -> Bitmask:
        self._buffers.reverse()
        if len(self._buffers[0]) < num_rows:
            self._buffers[0] = np.empty((num_rows, self._num_words), np.int32)
        return self._buffers[0][:num_rows]
