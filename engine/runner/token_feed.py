"""Tokens that were drawn in the last step and are on the device alone, for the step after it.

The host puts a step together before it has read these tokens. It knows in which rows they belong, and from which rows
of the last draw they come: the tokens are moved there on the device, in stream order.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch

from engine.core.scheduler_output import ScheduledSequence
from engine.core.sequence import UNKNOWN_TOKEN, Sequence


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
            index = _on_device(places, token_ids.device)
            drawn = self._drawn.index_select(0, _on_device(sources, token_ids.device))
            token_ids.index_copy_(0, index, drawn.clamp_(min=0))  # a row without a token has ended, whatever it gets


def _on_device(values: list[int], device: torch.device) -> torch.Tensor:
    host = torch.tensor(values, dtype=torch.int64)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)
