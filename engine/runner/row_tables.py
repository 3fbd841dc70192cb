"""The block tables of a batch that stays much the same from step to step, on the host.

A row is written anew only when another sequence comes to it, and grows by the blocks that its sequence has grown by.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from engine.core.scheduler_output import ScheduledSequence
from engine.core.sequence import Sequence


@dataclass(slots=True)
class _Row:
    """Whose blocks a row holds, and how many of them."""

    sequence: Sequence | None = None
    num_preemptions: int = 0
    num_blocks: int = 0


class RowTables:
    """`array` int32 `[rows, width]`: the blocks of each row's sequence; a row without one begins with `spare`."""

    def __init__(self, num_rows: int, width: int, spare: int) -> None:
        self.array = np.full((num_rows, width), spare, np.int32)
        self._spare = spare
        self._rows = [_Row() for _ in range(num_rows)]

    def update(self, items: Items[ScheduledSequence], bucket: int) -> int:
        """Have the first `bucket` rows hold `items` and then nobody.

        Returns how many columns have to be looked at to see every change: 0 where there is none.
        """
        sequences = [item.sequence for item in items] + [None] * (bucket - len(items))
        return max(self._update_row(row, sequence) for row, sequence in enumerate(sequences))

    def _update_row(self, row: int, sequence: Sequence | None) -> int:
        held = self._rows[row]
        if sequence is None:
            if held.sequence is None:
                return 0
            self.array[row, 0] = self._spare
            self._rows[row] = _Row()
            return 1
        blocks = sequence.block_table
        kept = held.sequence is sequence and held.num_preemptions == sequence.num_preemptions
        first = held.num_blocks if kept else 0
        if first == len(blocks):
            return 0
        self.array[row, first : len(blocks)] = blocks[first:]
        self._rows[row] = _Row(sequence, sequence.num_preemptions, len(blocks))
        return len(blocks)
