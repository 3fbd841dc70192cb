"""What happens to logits before a token is drawn: penalties, biases, bans, and the grammar's mask.

All edits but the mask touch a few tokens of a few rows. They are gathered as flat indices over the whole batch and
applied in one scatter a kind, in the order that `SamplingParams` documents.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from engine.runner.device import to_device
from engine.runner.token_edits import TokenEdits


class LogitEdits(TokenEdits):
    """The edits of one step on rows of `[R, vocab_size]` logits that are tensors."""

    def apply(self, logits: torch.Tensor) -> None:
        """Edit `logits`, float32 `[R, V]` contiguous, in place."""
        flat = logits.view(-1)
        if self._penalised:
            self._penalise(flat)
        if self._biases:
            places, additions = zip(*self._biases, strict=True)
            flat[_column(places, np.int64, flat)] += _column(additions, np.float32, flat)
        if self._bans:
            flat[_column(self._bans, np.int64, flat)] = -torch.inf

    def _penalise(self, flat: torch.Tensor) -> None:
        places, repetition, subtracted = self.penalties
        index, factor = _column(places, np.int64, flat), _column(repetition, np.float32, flat)
        values = flat[index]
        values = torch.where(values > 0, values / factor, values * factor)
        flat[index] = values - _column(subtracted, np.float32, flat)


def mask_disallowed(logits: torch.Tensor, bitmask: Any) -> None:
    """Set the logits `[R, V]` of tokens whose bit is 0 to -inf; `bitmask` is int32 `[R, ceil(V / 32)]`.

    Rows of all ones are left alone, bits past V are not looked at. Raises `ValueError` for a mask of another shape.
    """
    words = np.ascontiguousarray(bitmask, np.int32)
    rows, vocab = logits.shape
    if words.shape != (rows, -(-vocab // 32)):
        raise ValueError(f"the bitmask must have shape {[rows, -(-vocab // 32)]}, not {list(words.shape)}")
    is_disallowed = np.unpackbits((~words).view(np.uint8), axis=1, count=vocab, bitorder="little").view(np.bool_)
    if logits.device.type == "cpu":
        np.copyto(logits.numpy(), -np.inf, where=is_disallowed)  # three times as fast as masked_fill_
    else:
        logits.masked_fill_(to_device(is_disallowed, logits.device), -torch.inf)


def _column(values: Any, dtype: Any, like: torch.Tensor) -> torch.Tensor:
    return to_device(np.asarray(values, dtype), like.device)
