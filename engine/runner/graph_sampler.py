"""Draws the tokens of decodes as a replay of a captured launch, one for each bucket of the graphs of `graph_runner`.

What differs from step to step lies in buffers that stay where they are: copies in stream order fill them, and a row's
settings say in which of the two mask buffers its mask is. So a step is these copies, a wait for the masks, a replay.

    computing  forward graph | settings, edits | wait for the masks' copy | sample graph | tokens to the host
    lane       ................ masks, into the buffer that the step before does not read
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as Items
from functools import partial
from typing import Any

import numpy as np
import torch

from engine.core.scheduler_output import ScheduledSequence
from engine.runner.graph_runner import GraphDevice, Replay
from engine.runner.kernels.cuda_masks import Lane, MaskUpload
from engine.runner.kernels.cuda_sampler import CudaSampler, checked_mask, launch_sampler, on_device, pending_tokens
from engine.runner.kernels.cuda_sources import Launcher
from engine.runner.sampler import PendingTokens
from engine.runner.sampling_rows import EDIT, NO_MASK, ROW, edits_of, settings_of

_MOST_EDITS = 2**18  # of a step; what has more is not replayed


class GraphSampler:
    """Samples rows of logits that lie where graphs leave them, as `sampler` does, which takes what no graph can."""

    def __init__(
        self, sampler: CudaSampler, launcher: Launcher, lane: Lane, device: torch.device, most_rows: int
    ) -> None:
        self._sampler, self._launcher, self._vocab_size = sampler, launcher, sampler.vocab_size
        self._settings = torch.zeros(most_rows * ROW.itemsize, dtype=torch.uint8, device=device)
        self._starts = torch.zeros(2 * most_rows + 1, dtype=torch.int32, device=device)
        self._edits = torch.zeros(_MOST_EDITS * EDIT.itemsize, dtype=torch.uint8, device=device)
        self._token_ids = torch.zeros(most_rows, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(most_rows, 2, dtype=torch.float32, device=device)
        words = -(-self._vocab_size // 32)
        host, self._bitmask = lane.buffers(2 * most_rows, words)
        self._masks = MaskUpload(words, lane, (host, self._bitmask))
        self._has_edits = False  # whether there are any where graphs look for them
        self._buckets: list[int] = []  # ascending
        self._captured: dict[int, Replay] = {}

    @torch.inference_mode()
    def capture(self, graphs: GraphDevice, logits: Mapping[int, torch.Tensor]) -> None:
        """Record a draw from each bucket's `logits`, float32 `[bucket, V]`."""
        self._buckets = sorted(logits)
        for bucket, rows in logits.items():
            self._write_settings([], bucket, NO_MASK)
            _, self._captured[bucket] = graphs.capture(partial(self._launch, rows))

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, items: Items[ScheduledSequence], bitmask: Any | None) -> PendingTokens:
        """As `Sampler.sample`, for the first rows `[R, V]` of a bucket's logits; the tokens are good for one step."""
        starts, edits = edits_of(items, self._vocab_size)
        if edits is not None and len(edits) > _MOST_EDITS:
            return self._sampler.sample(logits, items, bitmask)
        bucket = self._buckets[bisect_left(self._buckets, len(items))]
        first_mask = NO_MASK
        if bitmask is not None:
            mask = self._masks.start(checked_mask(bitmask, len(items), self._vocab_size))
            first_mask = mask.storage_offset() // self._bitmask.shape[1]
        self._write_settings(items, bucket, first_mask)
        self._write_edits(starts, edits)
        number = len(items)
        pending = pending_tokens(
            logits, items, self._token_ids[:number], self._logprobs[:number], self._captured[bucket]
        )
        self._masks.was_read()
        return pending

    def _launch(self, logits: torch.Tensor) -> torch.Tensor:
        """What a graph records."""
        buffers = (self._settings, self._starts, self._edits, self._bitmask, self._token_ids, self._logprobs)
        launch_sampler(self._launcher, logits, *buffers)
        return self._token_ids

    def _write_settings(self, items: Items[ScheduledSequence], bucket: int, first_mask: int) -> None:
        """Those of `items`; rows of the bucket that nobody uses take the most likely token."""
        rows = np.zeros(bucket, ROW)
        rows["mask_row"] = NO_MASK
        rows[: len(items)] = settings_of(items, first_mask)
        filled = on_device(rows, self._settings.device)
        self._settings[: len(filled)].copy_(filled)

    def _write_edits(self, starts: Any, edits: Any) -> None:
        """Where each row's edits start, which is behind all of them for rows that nobody uses; and the edits."""
        if edits is None:
            if self._has_edits:
                self._starts.zero_()
                self._has_edits = False
            return
        padded = np.full(len(self._starts), len(edits), np.int32)
        padded[: len(starts)] = starts
        self._starts.copy_(on_device(padded, self._starts.device).view(torch.int32))
        records = on_device(edits, self._edits.device)
        self._edits[: len(records)].copy_(records)
        self._has_edits = True
