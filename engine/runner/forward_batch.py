"""A step's batch as tensors: what every layer shares, made once from the scheduler's decision.

rows     0 1 2 ... D-1 | D .......... | .......... T-1
         decodes, one  | prefill chunk| prefill chunk      one attention part for the decodes (more when their
         row each      |              |                    lengths differ much), one for each chunk
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any

import numpy as np
import torch

from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.runner.attention import (
    AttentionPart,
    ContinuedPrefillPart,
    DecodePart,
    PrefillPart,
    continues_without_mask,
)
from engine.runner.device import to_device
from engine.runner.kv_cache import LayerCache
from engine.runner.models.decoder_config import Window
from engine.runner.paged_attention import PagedAttention
from engine.runner.product_attention import uses_products

_WASTE_ALLOWED = 2  # decodes are split by length when padding exceeds this multiple of what is there


@dataclass(slots=True)
class ForwardBatch:
    """Inputs of a forward pass: `token_ids`, `positions` and `slots` are int64 `[T]`.

    `parts` are the attention parts by window. `sampling_rows` int64 `[R]` are the rows whose logits are wanted, None
    when all are.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    parts: Mapping[Window, list[AttentionPart]]
    sampling_rows: torch.Tensor | None

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: LayerCache,
        scale: float,
        window: Window = None,
    ) -> torch.Tensor:
        """Attention of all rows: `query` `[T, heads, D]`, `key`, `value` `[T, kv_heads, D]` -> `[T, heads * D]`.

        The batch's keys and values must be in `cache` already. `window` is one that the builder was told of.
        """
        parts = self.parts[window]
        if len(parts) == 1:
            return parts[0].attend(query, *parts[0].context(key, value, cache), scale).flatten(1)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for part in parts:
            rows = part.rows
            out[rows] = part.attend(query[rows], *part.context(key[rows], value[rows], cache), scale)
        return out.flatten(1)


class BatchBuilder:
    """Turns scheduler outputs into forward batches for one model and cache.

    `group` is the number of query heads that share a KV head; `windows` are those of the model's layers.
    With `paged`, decodes are computed by it, and prefill chunks where it knows them.
    """

    def __init__(
        self,
        block_size: int,
        group: int,
        dtype: torch.dtype,
        device: torch.device,
        windows: Items[Window] = (None,),
        paged: PagedAttention | None = None,
    ) -> None:
        self._block_size, self._group, self._windows = block_size, group, windows
        self._dtype, self._device, self.paged = dtype, device, paged

    def build(self, batch: SchedulerOutput) -> ForwardBatch:
        """The tensors of `batch`; its sequences' block tables must cover every token that is computed."""
        items = batch.scheduled
        token_ids, positions, slots = self._token_rows(items)
        num_decodes = sum(1 for _ in takewhile(lambda item: item.num_tokens == 1, items))
        sampling = [end - 1 for item, (_, end) in zip(items, _spans(items), strict=True) if item.samples]
        return ForwardBatch(
            token_ids=self._on_device(token_ids),
            positions=self._on_device(positions),
            slots=self._on_device(slots),
            parts={window: self._parts(items, num_decodes, window) for window in self._windows},
            sampling_rows=None if len(sampling) == len(token_ids) else self._on_device(np.asarray(sampling, np.int64)),
        )

    def _parts(self, items: Items[ScheduledSequence], num_decodes: int, window: Window) -> list[AttentionPart]:
        parts, chunks = self._decode_parts(items[:num_decodes], window), items[num_decodes:]
        if self.paged is not None and chunks:
            together = self.paged.chunks(chunks, num_decodes, window)
            if together is not None:
                return [*parts, together]
        for item, (begin, end) in zip(chunks, _spans(items)[num_decodes:], strict=True):
            parts.append(self._prefill_part(item, slice(begin, end), window))
        return parts

    def _token_rows(self, items: Items[ScheduledSequence]) -> tuple[Any, Any, Any]:
        """Token IDs, positions and cache slots of all rows, int64 `[T]`."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        size = self._block_size
        for item in items:
            start, end, table = item.start, item.start + item.num_tokens, item.sequence.block_table
            token_ids += item.sequence.token_ids[start:end]
            positions += range(start, end)
            slots += [table[place // size] * size + place % size for place in range(start, end)]
        return np.asarray(token_ids, np.int64), np.asarray(positions, np.int64), np.asarray(slots, np.int64)

    def _decode_parts(self, items: Items[ScheduledSequence], window: Window) -> list[AttentionPart]:
        if not len(items):
            return []
        if self.paged is not None:
            return [self.paged.decodes(items, window)]
        ends = np.asarray([item.start + 1 for item in items], np.int64)
        begins = np.zeros_like(ends) if window is None else np.maximum(ends - window, 0)  # the first token looked at
        lengths = ends - begins
        if int(lengths.max()) * len(items) <= _WASTE_ALLOWED * int(lengths.sum()):
            return [self._decode_part(items, begins, ends, slice(0, len(items)))]
        order = np.argsort(-lengths, kind="stable")
        cuts = _cuts([int(lengths[row]) for row in order])
        groups = [order[begin:end] for begin, end in zip(cuts, [*cuts[1:], len(order)], strict=True)]
        return [
            self._decode_part([items[row] for row in rows], begins[rows], ends[rows], self._on_device(rows))
            for rows in groups
        ]

    def _decode_part(
        self, items: Items[ScheduledSequence], begins: Any, ends: Any, rows: slice | torch.Tensor
    ) -> DecodePart:
        """Each row looks at its tokens from `begins` to `ends`, int64 `[B]`; blocks before them are not read."""
        size = self._block_size
        first_blocks = begins // size
        begins, ends = begins - first_blocks * size, ends - first_blocks * size
        length = int(ends.max())
        width = -(-length // size)
        table = np.zeros((len(items), width), np.int64)
        for row, (item, first) in enumerate(zip(items, first_blocks, strict=True)):
            blocks = item.sequence.block_table[first : first + width]
            table[row, : len(blocks)] = blocks
        mask = None
        if len(items) > 1 or begins[0]:
            length = width * size  # whole blocks stay contiguous, which products need
            places = np.arange(length)
            visible = torch.from_numpy((places >= begins[:, None]) & (places < ends[:, None]))  # [B, L]
            mask = self._mask(visible)[:, None, None]
        return DecodePart(rows, self._on_device(table.reshape(-1)), len(items), length, mask)

    def _prefill_part(self, item: ScheduledSequence, rows: slice, window: Window) -> AttentionPart:
        products = uses_products(self._device, self._dtype)
        if item.start == 0:
            limited = window is not None and window < item.num_tokens and not products
            return PrefillPart(rows, window, self._chunk_mask(item.num_tokens, 0, window) if limited else None)
        end = item.start + item.num_tokens
        first = 0 if window is None else max(0, item.start + 1 - window) // self._block_size
        table = np.asarray(item.sequence.block_table[first : -(-end // self._block_size)], np.int64)
        prefix = item.start - first * self._block_size
        mask = None
        if not continues_without_mask(self._device, self._dtype, window):
            mask = self._chunk_mask(item.num_tokens, prefix, window).repeat(self._group, 1)
        return ContinuedPrefillPart(rows, self._on_device(table), prefix + item.num_tokens, window, mask)

    def _chunk_mask(self, num_tokens: int, prefix: int, window: Window) -> torch.Tensor:
        """What each token of a chunk behind `prefix` tokens looks at, `[T, prefix + T]`."""
        places = torch.arange(prefix + num_tokens)
        own = places[prefix:, None]
        visible = places <= own
        return self._mask(visible if window is None else visible & (places > own - window))

    def _mask(self, visible: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(visible.shape, dtype=self._dtype).masked_fill_(~visible, float("-inf"))
        return mask if self._device.type == "cpu" else mask.pin_memory().to(self._device, non_blocking=True)

    def _on_device(self, array: Any) -> torch.Tensor:
        return to_device(array, self._device)


def _spans(items: Items[ScheduledSequence]) -> list[tuple[int, int]]:
    """The rows of each item, from and up to."""
    ends = list(accumulate(item.num_tokens for item in items))
    return list(zip([0, *ends], ends, strict=False))


def _cuts(lengths: Items[int]) -> list[int]:
    """Where groups of descending `lengths` start, so that none is padded to more than twice its length."""
    starts = [0]
    for row, length in enumerate(lengths):
        if length * _WASTE_ALLOWED < lengths[starts[-1]]:
            starts.append(row)
    return starts
