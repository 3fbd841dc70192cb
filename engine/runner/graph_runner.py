"""Decodes as replays of captured graphs, so that a step costs the host one launch instead of hundreds.

A graph fixes shapes and addresses. So there is one for each bucket of batch sizes, 1, 2, 4 … up to the most sequences
that run; its inputs are buffers that every step fills, and rows that the bucket has too many work on a block of their
own that belongs to nobody.

    row      0 1 ... n-1 | n ......... bucket-1
             sequences   | token 0, position 0, the spare block
    buffers  token IDs, positions, slots, ends, begins (by window), block tables  ->  logits

Block tables are kept on the host as well: a row is written anew only when another sequence comes to it, and grows by
the blocks that its sequence has grown by.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import Sequence
from engine.runner.forward_batch import ForwardBatch
from engine.runner.kernels.cuda_attention import PagedAttention, PagedDecodePart
from engine.runner.kv_cache import KVCache
from engine.runner.models.registry import Model
from engine.runner.token_feed import TokenFeed

Replay = Callable[[], None]


class GraphDevice(Protocol):
    """What records computations on a device."""

    def capture(self, compute: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Replay]:
        """Record `compute`. Returns its result, which every replay overwrites."""
        ...


class CudaGraphs:
    """Records on a GPU; all graphs share one pool of memory, since no two run at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, compute: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Replay]:
        compute()  # loads kernels and lets libraries choose theirs, which a capture could not
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = compute()
        return result, graph.replay


def bucket_sizes(most: int) -> list[int]:
    """1, 2, 4 … and `most` itself."""
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes


@dataclass(slots=True)
class _TableRow:
    """Whose blocks a row of the table holds, and how many of them."""

    sequence: Sequence | None = None
    num_preemptions: int = 0
    num_blocks: int = 0


@dataclass(slots=True)
class _Buffers:
    """The graphs' inputs for `most` rows, on the device; a bucket uses the first rows."""

    numbers: torch.Tensor  # int64 [3, most]: token IDs, positions, slots
    limits: torch.Tensor  # int32 [1 + windows, most]: ends, then the begins of each window
    tables: torch.Tensor  # int32 [most, blocks a sequence]
    rows: list[_TableRow] = field(default_factory=list)


class GraphRunner:
    """Computes batches that hold nothing but decodes, for one model and cache.

    The cache must have one block more than sequences may use: the last one is spare. Results are valid until the next
    batch of the same bucket is computed.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        paged: PagedAttention,
        graphs: GraphDevice,
        device: torch.device,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
    ) -> None:
        self._model, self._cache, self._paged, self._graphs = model, cache, paged, graphs
        self._block_size, self._spare = block_size, cache.layers[0].keys.shape[0] - 1
        self.buckets = bucket_sizes(max_num_seqs)
        width = -(-max_model_len // block_size)
        self._table = np.full((max_num_seqs, width), self._spare, np.int32)
        self._buffers = _Buffers(
            torch.zeros(3, max_num_seqs, dtype=torch.int64, device=device),
            torch.zeros(1 + len(model.windows), max_num_seqs, dtype=torch.int32, device=device),
            torch.from_numpy(self._table).to(device, copy=True),
            [_TableRow() for _ in range(max_num_seqs)],
        )
        self._captured: dict[int, tuple[torch.Tensor, Replay]] = {}

    @torch.inference_mode()
    def capture(self) -> None:
        """Record the graph of every bucket, the largest first, whose memory the others then share."""
        for bucket in reversed(self.buckets):
            self._fill([], bucket)
            compute = partial(self._model.forward, self._batch(bucket), self._cache)
            self._captured[bucket] = self._graphs.capture(compute)

    def accepts(self, batch: SchedulerOutput) -> bool:
        """Whether `batch` is decodes alone, and not too many."""
        items = batch.scheduled
        return 0 < len(items) <= self.buckets[-1] and all(item.num_tokens == 1 and item.samples for item in items)

    @torch.inference_mode()
    def forward(self, batch: SchedulerOutput, feed: TokenFeed) -> torch.Tensor:
        """Compute a batch that is accepted, with tokens from `feed`; float32 logits `[R, V]`."""
        items = batch.scheduled
        bucket = self.buckets[bisect_left(self.buckets, len(items))]
        self._fill(items, bucket)
        feed.fill(self._buffers.numbers[0, :bucket], items)
        logits, replay = self._captured[bucket]
        replay()
        return logits[: len(items)]

    def _batch(self, bucket: int) -> ForwardBatch:
        """What a graph reads: the first rows of the buffers."""
        buffers = self._buffers
        token_ids, positions, slots = buffers.numbers[:, :bucket].unbind(0)
        ends, tables = buffers.limits[0, :bucket], buffers.tables[:bucket]
        return ForwardBatch(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            parts={
                window: [
                    PagedDecodePart(slice(0, bucket), self._paged, tables, buffers.limits[1 + place, :bucket], ends)
                ]
                for place, window in enumerate(self._model.windows)
            },
            sampling_rows=None,
        )

    def _fill(self, items: list[ScheduledSequence], bucket: int) -> None:
        """Write the step's rows into the buffers, and what is harmless into the rest of the bucket."""
        number, size = len(items), self._block_size
        numbers = np.zeros((3, bucket), np.int64)
        numbers[2, number:] = self._spare * size
        numbers[0, :number] = [item.sequence.token_ids[item.start] for item in items]
        numbers[1, :number] = [item.start for item in items]
        numbers[2, :number] = [
            item.sequence.block_table[item.start // size] * size + item.start % size for item in items
        ]
        limits = np.zeros((1 + len(self._model.windows), bucket), np.int32)
        limits[0] = numbers[1] + 1
        for place, window in enumerate(self._model.windows, 1):
            if window is not None:
                limits[place] = np.maximum(limits[0] - window, 0)
        _copy(self._buffers.numbers[:, :bucket], numbers)
        _copy(self._buffers.limits[:, :bucket], limits)
        if self._update_table(items, bucket):
            _copy(self._buffers.tables[:bucket], self._table[:bucket])

    def _update_table(self, items: list[ScheduledSequence], bucket: int) -> bool:
        """Bring the host's table up to date; whether anything has changed."""
        changed = False
        for row in range(bucket):
            sequence = items[row].sequence if row < len(items) else None
            changed = self._update_row(row, sequence) or changed
        return changed

    def _update_row(self, row: int, sequence: Sequence | None) -> bool:
        held = self._buffers.rows[row]
        if sequence is None:
            if held.sequence is None:
                return False
            self._table[row, 0] = self._spare  # the one block that a row of one token reads
            self._buffers.rows[row] = _TableRow()
            return True
        blocks = sequence.block_table
        kept = held.sequence is sequence and held.num_preemptions == sequence.num_preemptions
        first = held.num_blocks if kept else 0
        if first == len(blocks):
            return False
        self._table[row, first : len(blocks)] = blocks[first:]
        self._buffers.rows[row] = _TableRow(sequence, sequence.num_preemptions, len(blocks))
        return True


def _copy(target: torch.Tensor, source: Any) -> None:
    """Copy an array to the device in stream order; the array may be changed at once."""
    host = torch.from_numpy(np.ascontiguousarray(source))
    target.copy_(host if target.device.type == "cpu" else host.pin_memory(), non_blocking=True)
