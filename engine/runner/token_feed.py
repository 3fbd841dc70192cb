"""Tokens that were drawn in the last step and are on the device alone, for the step after it.

The host puts a step together before it has read these tokens. It knows in which rows they belong, and from which rows
of the last draw they come: the tokens are moved there on the device, in stream order.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import torch

from engine.core.scheduler_output import ScheduledSequence
from engine.core.sequence import UNKNOWN_TOKEN, Sequence
from engine.runner.device import to_device


class TokenFeed:
    """Keeps the last draw."""

    def __init__(self) -> None:
        self._drawn: torch.Tensor | None = None  # int64 [R]
        self._rows: dict[Sequence, int] = {}

    def keep(self, drawn: torch.Tensor, items: Items[ScheduledSequence]) -> None:
        """`drawn` int64 `[R]` on the device are the tokens of `items`; -1 where nothing was allowed."""
        self._drawn = drawn
        self._rows = {item.sequence: row for row, item in enumerate(items)}

    def fill(self, token_ids: torch.Tensor, items: Items[ScheduledSequence]) -> None:
        """Write the tokens that the host does not know into `token_ids` int64 `[T]`, the rows of `items`."""
        places, sources, row = [], [], -1
        for item in items:
            row += item.num_tokens
            if item.sequence.token_ids[item.start + item.num_tokens - 1] == UNKNOWN_TOKEN:
                places.append(row)
                sources.append(self._rows[item.sequence])
        if self._drawn is not None and places:
            index = to_device(np.asarray(places, np.int64), token_ids.device)
            drawn = self._drawn.index_select(0, to_device(np.asarray(sources, np.int64), token_ids.device))
            token_ids.index_copy_(0, index, drawn.clamp_(min=0))  # a row without a token has ended, whatever it gets
