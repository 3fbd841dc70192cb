"""The sampler of the CPU library: what `Sampler` does with tensors, by `cpu_sample.c`, on the threads of the model.

A batch of nothing but plain greedy rows is one call over the logits, with nothing made for a row. The most likely
alternatives, which few requests ask for, are found here, before the logits are used up.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any

import numpy as np

from engine.core.runner import SampledToken, TokenLogprobs
from engine.core.scheduler_output import ScheduledSequence
from engine.runner.kernels.cpu_library import Draws
from engine.runner.sampling_rows import edits_of, settings_of

Array = np.ndarray[Any, Any]


class CpuSampler:
    """Samples rows of logits by `draw`, which computes what a `Draws` says."""

    def __init__(self, vocab_size: int, draw: Callable[[Draws], None]) -> None:
        self._vocab_size, self._draw = vocab_size, draw

    def sample(self, logits: Array, items: Items[ScheduledSequence], bitmask: Any | None) -> list[SampledToken]:
        """A token for each row of `logits`, float32 `[R, V]` contiguous, which is overwritten.

        `items` are the rows' sequences, `bitmask` is int32 `[R, ceil(V / 32)]` (bit 1 = allowed) or None. Raises
        `ValueError` for a bitmask of another shape.
        """
        mask = None if bitmask is None else self._checked(bitmask, len(items))
        if mask is None and all(item.sequence.is_plain_greedy for item in items):
            return self._most_likely(logits)
        top = {
            row: _alternatives(logits[row], wanted)
            for row, item in enumerate(items)
            if (wanted := item.sequence.sampling_params.logprobs) is not None
        }
        token_ids, logprobs = np.empty(len(items), np.int64), np.empty((len(items), 2), np.float32)
        settings, (starts, edits) = settings_of(items), edits_of(items, self._vocab_size)
        arrays = {
            "logits": logits,
            "settings": settings,
            "edit_starts": starts,
            "edits": edits,
            "bitmask": mask,
            "token_ids": token_ids,
            "logprobs": logprobs,
        }
        addresses = {name: None if array is None else array.ctypes.data for name, array in arrays.items()}
        self._draw(Draws(**addresses, num_rows=len(items), vocabulary=self._vocab_size))
        tokens = _tokens(token_ids)
        for row, (ids, values) in top.items():
            chosen, normaliser = logprobs[row].tolist()
            if tokens[row].token_id is not None:
                alternatives = list(zip(ids.tolist(), (values - normaliser).tolist(), strict=True))
                tokens[row] = SampledToken(tokens[row].token_id, TokenLogprobs(chosen, alternatives))
        return tokens

    def _most_likely(self, logits: Array) -> list[SampledToken]:
        """The token of the largest logit of each row."""
        token_ids = np.empty(len(logits), np.int64)
        if len(logits):
            addresses = {"logits": logits.ctypes.data, "token_ids": token_ids.ctypes.data}
            self._draw(Draws(**addresses, num_rows=len(logits), vocabulary=self._vocab_size))
        return _tokens(token_ids)

    def _checked(self, bitmask: Any, rows: int) -> Array:
        words = np.ascontiguousarray(bitmask, np.int32)
        expected = (rows, -(-self._vocab_size // 32))
        if words.shape != expected:
            raise ValueError(f"the bitmask must have shape {list(expected)}, not {list(words.shape)}")
        return words


def _tokens(token_ids: Array) -> list[SampledToken]:
    return [SampledToken(None if token < 0 else token) for token in token_ids.tolist()]


def _alternatives(row: Array, count: int) -> tuple[Array, Array]:
    """The `count` tokens with the largest logits of `row` `[V]`, best first, and these logits."""
    ids = np.argpartition(row, -count)[-count:] if 0 < count < len(row) else np.arange(len(row))
    ids = ids[np.argsort(-row[ids], kind="stable")][:count]
    return ids, row[ids]
