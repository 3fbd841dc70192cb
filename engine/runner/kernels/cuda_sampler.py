"""The sampler as one kernel launch: what `Sampler` does with tensors, `sample_rows.cu` does a block a row.

Settings and edits of all rows travel in two arrays of records, laid out as the kernel reads them. Only the most likely
alternatives, which few requests ask for, are found by torch, before the logits are used up.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from functools import partial
from typing import Any

import numpy as np
import torch

from engine.core.scheduler_output import ScheduledSequence
from engine.runner.device import to_device
from engine.runner.kernels.cuda_masks import Lane, MaskUpload
from engine.runner.kernels.cuda_sources import APPLY_BITMASK, SAMPLE_ROWS, Launcher
from engine.runner.sampler import PendingTokens, Sampler
from engine.runner.sampling_rows import NO_MASK, edits_of, settings_of

_THREADS = 1024
_MOST_TOKENS = 2**20  # of a vocabulary: the sums of so many groups fit into shared memory


class CudaSampler:
    """Samples as `Sampler` does, by the kernel; vocabularies above 2^20 tokens are left to `Sampler`.

    With a `lane`, masks come to the device beside what it computes.
    """

    def __init__(self, vocab_size: int, launcher: Launcher, lane: Lane | None = None) -> None:
        self.vocab_size, self._launcher = vocab_size, launcher
        self._masks = None if lane is None else MaskUpload(-(-vocab_size // 32), lane)
        self._by_tensors = Sampler(vocab_size)

    def sample(self, logits: torch.Tensor, items: Items[ScheduledSequence], bitmask: Any | None) -> PendingTokens:
        """As `Sampler.sample`: a token for each row of `logits`, float32 `[R, V]` contiguous, which is overwritten.

        Raises `ValueError` for a bitmask of another shape.
        """
        if not self.is_by_kernel:
            return self._sample_by_tensors(logits, items, bitmask)
        mask = None if bitmask is None else self._mask_on_device(logits, bitmask)
        device, number = logits.device, len(items)
        token_ids = torch.empty(number, dtype=torch.int64, device=device)
        logprobs = torch.empty(number, 2, dtype=torch.float32, device=device)
        starts, edits = (None if part is None else on_device(part, device) for part in edits_of(items, self.vocab_size))
        rows = on_device(settings_of(items, NO_MASK if mask is None else 0), device)
        draw = partial(launch_sampler, self._launcher, logits, rows, starts, edits, mask, token_ids, logprobs)
        pending = pending_tokens(logits, items, token_ids, logprobs, draw)
        self._mask_was_read()
        return pending

    @property
    def is_by_kernel(self) -> bool:
        """Whether the vocabulary is not too large for the kernel."""
        return self.vocab_size <= _MOST_TOKENS

    def _mask_on_device(self, logits: torch.Tensor, bitmask: Any) -> torch.Tensor:
        words = checked_mask(bitmask, len(logits), self.vocab_size)
        return to_device(words, logits.device) if self._masks is None else self._masks.start(words)

    def _mask_was_read(self) -> None:
        if self._masks is not None:
            self._masks.was_read()

    def _sample_by_tensors(
        self, logits: torch.Tensor, items: Items[ScheduledSequence], bitmask: Any | None
    ) -> PendingTokens:
        """The mask first, by its kernel: -inf stays -inf. Log probabilities want the logits as they were, though."""
        wants_logprobs = any(item.sequence.sampling_params.logprobs is not None for item in items)
        if bitmask is None or wants_logprobs or not len(items):
            return self._by_tensors.sample(logits, items, bitmask)
        apply_bitmask(self._launcher, logits, self._mask_on_device(logits, bitmask))
        self._mask_was_read()
        return self._by_tensors.sample(logits, items, None)


def checked_mask(bitmask: Any, rows: int, vocab_size: int) -> Any:
    """`bitmask` int32 `[R, ceil(V / 32)]` as it is copied; raises `ValueError` for another shape."""
    words, expected = np.ascontiguousarray(bitmask, np.int32), (rows, -(-vocab_size // 32))
    if words.shape != expected:
        raise ValueError(f"the bitmask must have shape {list(expected)}, not {list(words.shape)}")
    return words


def launch_sampler(launcher: Launcher, logits: torch.Tensor, *buffers: torch.Tensor | None) -> None:
    """Draw from every row of `logits` `[R, V]`; `buffers` are the kernel's other arrays, in its order."""
    rows, vocab_size = logits.shape
    if rows:
        arguments = (logits, np.int32(vocab_size), *buffers)
        launcher.launch(SAMPLE_ROWS, "sample_rows", (rows, 1, 1), _THREADS, arguments)


def pending_tokens(
    logits: torch.Tensor,
    items: Items[ScheduledSequence],
    token_ids: torch.Tensor,
    logprobs: torch.Tensor,
    draw: Callable[[], None],
) -> PendingTokens:
    """What `draw` writes to `token_ids` `[R]` and `logprobs` `[R, 2]`, with the alternatives that rows ask for."""
    params = [item.sequence.sampling_params for item in items]
    logprob_rows = [(row, setting.logprobs) for row, setting in enumerate(params) if setting.logprobs is not None]
    top = _top_logits(logits, logprob_rows)  # before a draw changes them
    draw()
    pending = PendingTokens(token_ids, logprob_rows)
    if top is not None:
        chosen, normaliser = logprobs.index_select(0, _rows(logprob_rows, logits.device)).unbind(1)
        pending.chosen_logprobs = chosen
        pending.top_logprobs, pending.top_ids = top[0] - normaliser.unsqueeze(1), top[1]
    return pending


def apply_bitmask(launcher: Launcher, logits: torch.Tensor, mask: torch.Tensor) -> None:
    """Set the logits, float32 `[R, V]`, of tokens whose bit in `mask` `[R, ceil(V / 32)]` is 0 to -inf."""
    rows, vocab = logits.shape
    grid = (-(-vocab // _THREADS), rows, 1)
    launcher.launch(APPLY_BITMASK, "apply_bitmask", grid, _THREADS, (logits, np.int32(vocab), mask))


def on_device(array: Any, device: torch.device) -> torch.Tensor:
    """A numpy array of numbers or records as a tensor of its bytes."""
    return to_device(array.view(np.uint8) if array.size else np.empty(0, np.uint8), device)


def _top_logits(logits: torch.Tensor, logprob_rows: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The largest logits of the rows that ask for alternatives, and their tokens, `[n, most alternatives]`."""
    if not logprob_rows:
        return None
    most = max(count for _, count in logprob_rows)
    rows = logits.index_select(0, _rows(logprob_rows, logits.device))
    values, ids = rows.topk(min(most, logits.shape[1]), dim=-1)
    return values, ids


def _rows(logprob_rows: list[tuple[int, int]], device: torch.device) -> torch.Tensor:
    return to_device(np.asarray([row for row, _ in logprob_rows], np.int64), device)
