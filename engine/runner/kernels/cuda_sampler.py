"""The sampler as one kernel launch: what `Sampler` does with tensors, `sample_rows.cu` does a block a row.

Settings and edits of all rows travel in two arrays of records, laid out as the kernel reads them. Only the most likely
alternatives, which few requests ask for, are found by torch, before the logits are used up.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import numpy as np
import torch

from engine.core.scheduler_output import ScheduledSequence
from engine.runner.kernels.cuda_sources import APPLY_BITMASK, SAMPLE_ROWS, Launcher
from engine.runner.logit_edits import LogitEdits
from engine.runner.sampler import PendingTokens, Sampler

_THREADS = 1024
_MOST_TOKENS = 2**20  # of a vocabulary: the sums of so many groups fit into shared memory
_LEAST_TEMPERATURE = 1e-30  # what float32 can still divide by
_MASK_64, _MOST_TOP_K = 2**64 - 1, 2**31 - 1

ROW = np.dtype(
    [
        ("seed", np.uint64),
        ("top_p", np.float64),
        ("position", np.uint32),
        ("top_k", np.int32),
        ("temperature", np.float32),
        ("log_min_p", np.float32),
        ("wants_logprob", np.int32),
        ("unused", np.int32),
    ]
)
EDIT = np.dtype([("token", np.int32), ("factor", np.float32), ("subtracted", np.float32), ("before", np.float32)])


class CudaSampler:
    """Samples as `Sampler` does, by the kernel; vocabularies above 2^20 tokens are left to `Sampler`."""

    def __init__(self, vocab_size: int, launcher: Launcher) -> None:
        self._vocab_size, self._launcher = vocab_size, launcher
        self._by_tensors = Sampler(vocab_size)

    def sample(self, logits: torch.Tensor, items: Items[ScheduledSequence], bitmask: Any | None) -> PendingTokens:
        """As `Sampler.sample`: a token for each row of `logits`, float32 `[R, V]` contiguous, which is overwritten.

        Raises `ValueError` for a bitmask of another shape.
        """
        if self._vocab_size > _MOST_TOKENS:
            return self._sample_by_tensors(logits, items, bitmask)
        mask = None if bitmask is None else self._mask_on_device(logits, bitmask)
        device, number = logits.device, len(items)
        logprob_rows = [
            (row, item.sequence.sampling_params.logprobs)
            for row, item in enumerate(items)
            if item.sequence.sampling_params.logprobs is not None
        ]
        top = _top_logits(logits, logprob_rows)
        token_ids = torch.empty(number, dtype=torch.int64, device=device)
        logprobs = torch.empty(number, 2, dtype=torch.float32, device=device)
        starts, edits = self._edits(items, device)
        rows = on_device(settings_of(items), device)
        arguments = (logits, np.int32(self._vocab_size), rows, starts, edits, mask, token_ids, logprobs)
        if number:
            self._launcher.launch(SAMPLE_ROWS, "sample_rows", (number, 1, 1), _THREADS, arguments)
        pending = PendingTokens(token_ids, logprob_rows)
        if top is not None:
            chosen, normaliser = logprobs[[row for row, _ in logprob_rows]].unbind(1)
            pending.chosen_logprobs = chosen
            pending.top_logprobs, pending.top_ids = top[0] - normaliser.unsqueeze(1), top[1]
        return pending

    def _mask_on_device(self, logits: torch.Tensor, bitmask: Any) -> torch.Tensor:
        words = np.ascontiguousarray(bitmask, np.int32)
        expected = (len(logits), -(-self._vocab_size // 32))
        if words.shape != expected:
            raise ValueError(f"the bitmask must have shape {list(expected)}, not {list(words.shape)}")
        return on_device(words, logits.device)

    def _edits(
        self, items: Items[ScheduledSequence], device: torch.device
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Where each row's penalties and additions start, and all of them; None where there are none."""
        collected = LogitEdits(items, self._vocab_size)
        places, factors, subtracted = collected.penalties
        additions = collected.additions
        if not len(places) and not additions:
            return None, None
        added = np.fromiter(additions.keys(), np.int64, len(additions))
        kinds = np.repeat([0, 1], [len(places), len(added)])
        places = np.concatenate((places, added))
        runs = places // self._vocab_size * 2 + kinds  # of row r: 2r for its penalties, then 2r + 1
        order = np.argsort(runs, kind="stable")
        edits = np.zeros(len(places), EDIT)
        edits["token"] = (places % self._vocab_size)[order]
        edits["factor"] = np.concatenate((factors, np.ones(len(added), np.float32)))[order]
        edits["subtracted"] = np.concatenate((subtracted, -np.fromiter(additions.values(), np.float32)))[order]
        starts = np.searchsorted(runs[order], np.arange(2 * len(items) + 1)).astype(np.int32)
        return on_device(starts, device), on_device(edits, device)

    def _sample_by_tensors(
        self, logits: torch.Tensor, items: Items[ScheduledSequence], bitmask: Any | None
    ) -> PendingTokens:
        """The mask first, by its kernel: -inf stays -inf. Log probabilities want the logits as they were, though."""
        wants_logprobs = any(item.sequence.sampling_params.logprobs is not None for item in items)
        if bitmask is None or wants_logprobs or not len(items):
            return self._by_tensors.sample(logits, items, bitmask)
        apply_bitmask(self._launcher, logits, self._mask_on_device(logits, bitmask))
        return self._by_tensors.sample(logits, items, None)


def apply_bitmask(launcher: Launcher, logits: torch.Tensor, mask: torch.Tensor) -> None:
    """Set the logits, float32 `[R, V]`, of tokens whose bit in `mask` `[R, ceil(V / 32)]` is 0 to -inf."""
    rows, vocab = logits.shape
    grid = (-(-vocab // _THREADS), rows, 1)
    launcher.launch(APPLY_BITMASK, "apply_bitmask", grid, _THREADS, (logits, np.int32(vocab), mask))


def settings_of(items: Items[ScheduledSequence]) -> Any:
    """The rows' settings as the kernel reads them; a draw's position is that of the token it yields."""
    params = [item.sequence.sampling_params for item in items]
    rows = np.zeros(len(items), ROW)
    rows["seed"] = [item.sequence.seed & _MASK_64 for item in items]
    rows["position"] = [item.start + item.num_tokens for item in items]
    rows["top_p"] = [setting.top_p for setting in params]
    rows["top_k"] = [min(setting.top_k, _MOST_TOP_K) for setting in params]
    rows["temperature"] = [
        0.0 if setting.is_greedy else max(setting.temperature, _LEAST_TEMPERATURE) for setting in params
    ]
    rows["log_min_p"] = torch.tensor([setting.min_p for setting in params], dtype=torch.float32).log().numpy()
    rows["wants_logprob"] = [setting.logprobs is not None for setting in params]
    return rows


def on_device(array: Any, device: torch.device) -> torch.Tensor:
    """A copy of a numpy array of numbers or records as a tensor of its bytes; the array may be reused at once."""
    octets = torch.from_numpy(array.view(np.uint8) if array.size else np.empty(0, np.uint8))
    return octets.clone() if device.type == "cpu" else octets.pin_memory().to(device, non_blocking=True)


def _top_logits(logits: torch.Tensor, logprob_rows: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The largest logits of the rows that ask for alternatives, and their tokens, `[n, most alternatives]`."""
    if not logprob_rows:
        return None
    most = max(count for _, count in logprob_rows)
    values, ids = logits[[row for row, _ in logprob_rows]].topk(min(most, logits.shape[1]), dim=-1)
    return values, ids
