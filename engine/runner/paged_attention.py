"""Attention over the KV cache where it lies, without a gather: what the runner asks of those who compute it.

Where nobody does, the parts of `attention.py` gather the blocks and leave the rest to torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Protocol

from engine.core.scheduler_output import ScheduledSequence
from engine.runner.attention import AttentionPart
from engine.runner.models.decoder_config import Window
from engine.runner.row_tables import RowTables


class RecordedDecodes(Protocol):
    """The attention of decodes that graphs have recorded, one graph a bucket: it reads what `fill` wrote last."""

    def parts(self, bucket: int) -> Mapping[Window, list[AttentionPart]]:
        """What the graph of `bucket` records, by window; the bucket must have been filled."""
        ...

    def fill(self, items: Items[ScheduledSequence], bucket: int) -> None:
        """Have the next replay of `bucket` compute `items` in its first rows; other rows read the spare block alone."""
        ...


class PagedAttention(Protocol):
    """Attention for the shapes of one model. A part is valid until the next one of its kind is made."""

    description: str  # for people, in a few words

    def decodes(self, items: Items[ScheduledSequence], window: Window) -> AttentionPart:
        """The part of `items`, one token each, which are the first rows of a batch."""
        ...

    def chunks(self, items: Items[ScheduledSequence], first_row: int, window: Window) -> AttentionPart | None:
        """The part of prefill chunks, whose rows begin at `first_row`; None where gathers have to do."""
        ...

    def recorded(self, tables: RowTables, windows: Items[Window]) -> RecordedDecodes:
        """Decodes for graphs to record, of as many sequences as `tables` have rows; it keeps these up to date."""
        ...
