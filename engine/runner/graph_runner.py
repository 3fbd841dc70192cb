"""Decodes as replays of captured graphs, so that a step costs the host one launch instead of hundreds.

A graph fixes shapes and addresses. So there is one for each bucket of batch sizes, 1, 2, 4 … up to the most sequences
that run; its inputs are buffers that every step fills, and rows that the bucket has too many work on a block of their
own that belongs to nobody. The draw from its logits is a second graph, see `graph_sampler`: between the two a step
waits for its masks.

    row      0 1 ... n-1 | n ......... bucket-1
             sequences   | token 0, position 0, the spare block
    buffers  token IDs, positions, slots; what attention reads  ->  logits
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
import torch

from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.runner.device import to_device
from engine.runner.forward_batch import ForwardBatch
from engine.runner.kv_cache import KVCache
from engine.runner.models.registry import Model
from engine.runner.paged_attention import PagedAttention
from engine.runner.row_tables import RowTables
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
        self._model, self._cache, self._graphs = model, cache, graphs
        self._block_size, self._spare = block_size, cache.layers[0].keys.shape[0] - 1
        self.buckets = bucket_sizes(max_num_seqs)
        self._numbers = torch.zeros(3, max_num_seqs, dtype=torch.int64, device=device)  # token IDs, positions, slots
        tables = RowTables(max_num_seqs, -(-max_model_len // block_size), self._spare)
        self._attention = paged.recorded(tables, model.windows)
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
        feed.fill(self._numbers[0, :bucket], items)
        logits, replay = self._captured[bucket]
        replay()
        return logits[: len(items)]

    @property
    def logits(self) -> dict[int, torch.Tensor]:
        """Where the graph of each bucket leaves its logits, float32 `[bucket, V]`."""
        return {bucket: logits for bucket, (logits, _) in self._captured.items()}

    def _batch(self, bucket: int) -> ForwardBatch:
        """What a graph reads: the first rows of the buffers."""
        token_ids, positions, slots = self._numbers[:, :bucket].unbind(0)
        return ForwardBatch(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            parts=self._attention.parts(bucket),
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
        self._numbers[:, :bucket].copy_(to_device(numbers, self._numbers.device))
        self._attention.fill(items, bucket)
