"""A step's batch as tensors: what every layer shares, made once from the scheduler's decision.

rows     0 1 2 ... D-1 | D .......... | .......... T-1
         decodes, one  | prefill chunk| prefill chunk      one attention part for the decodes (more when their
         row each      |              |                    lengths differ much), one for each chunk
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.runner.attention import AttentionPart, ContinuedPrefillPart, DecodePart, PrefillPart
from engine.runner.kv_cache import LayerCache
from engine.runner.product_attention import uses_products

_WASTE_ALLOWED = 2  # decodes are split by length when padding exceeds this multiple of what is there


@dataclass(slots=True)
class ForwardBatch:
    """Inputs of a forward pass: `token_ids`, `positions` and `slots` are int64 `[T]`.

    `sampling_rows` int64 `[R]` are the rows whose logits are wanted, None when all are.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    parts: list[AttentionPart]
    sampling_rows: torch.Tensor | None

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: LayerCache, scale: float
    ) -> torch.Tensor:
        """Attention of all rows: `query` `[T, heads, D]`, `key`, `value` `[T, kv_heads, D]` -> `[T, heads * D]`.

        The batch's keys and values must be in `cache` already.
        """
        if len(self.parts) == 1:
            return self.parts[0].attend(query, key, value, cache, scale).flatten(1)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for part in self.parts:
            rows = part.rows
            out[rows] = part.attend(query[rows], key[rows], value[rows], cache, scale)
        return out.flatten(1)


class BatchBuilder:
    """Turns scheduler outputs into forward batches for one model and cache."""

    def __init__(self, block_size: int, group: int, dtype: torch.dtype, device: torch.device) -> None:
        self._block_size, self._group = block_size, group  # group: query heads that share a KV head
        self._dtype, self._device = dtype, device

    def build(self, batch: SchedulerOutput) -> ForwardBatch:
        """The tensors of `batch`; its sequences' block tables must cover every token that is computed."""
        items = batch.scheduled
        token_ids, positions, slots = self._token_rows(items)
        num_decodes = sum(1 for _ in takewhile(lambda item: item.num_tokens == 1, items))
        parts: list[AttentionPart] = list(self._decode_parts(items[:num_decodes]))
        row, sampling = num_decodes, [row for row in range(num_decodes) if items[row].samples]
        for item in items[num_decodes:]:
            parts.append(self._prefill_part(item, slice(row, row + item.num_tokens)))
            row += item.num_tokens
            if item.samples:
                sampling.append(row - 1)
        return ForwardBatch(
            token_ids=self._on_device(token_ids),
            positions=self._on_device(positions),
            slots=self._on_device(slots),
            parts=parts,
            sampling_rows=None if len(sampling) == row else self._on_device(np.asarray(sampling, np.int64)),
        )

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

    def _decode_parts(self, items: Items[ScheduledSequence]) -> list[DecodePart]:
        lengths = np.asarray([item.start + 1 for item in items], np.int64)
        if not len(items):
            return []
        if int(lengths.max()) * len(items) <= _WASTE_ALLOWED * int(lengths.sum()):
            return [self._decode_part(items, lengths, slice(0, len(items)))]
        order = np.argsort(-lengths, kind="stable")
        cuts = _cuts([int(lengths[row]) for row in order])
        groups = [order[begin:end] for begin, end in zip(cuts, [*cuts[1:], len(order)], strict=True)]
        return [
            self._decode_part([items[row] for row in rows], lengths[rows], self._on_device(rows)) for rows in groups
        ]

    def _decode_part(self, items: Items[ScheduledSequence], lengths: Any, rows: slice | torch.Tensor) -> DecodePart:
        length = int(lengths.max())
        width = -(-length // self._block_size)
        table = np.zeros((len(items), width), np.int64)
        for row, item in enumerate(items):
            blocks = item.sequence.block_table[:width]
            table[row, : len(blocks)] = blocks
        mask = None
        if len(items) > 1:
            length = width * self._block_size  # whole blocks stay contiguous, which products need
            visible = torch.from_numpy(np.arange(length) < lengths[:, None])  # [B, L]
            mask = self._mask(visible)[:, None, None]
        return DecodePart(rows, self._on_device(table.reshape(-1)), length, mask)

    def _prefill_part(self, item: ScheduledSequence, rows: slice) -> AttentionPart:
        if item.start == 0:
            return PrefillPart(rows)
        end = item.start + item.num_tokens
        table = np.asarray(item.sequence.block_table[: -(-end // self._block_size)], np.int64)
        mask = None
        if not uses_products(self._device, self._dtype):
            visible = torch.arange(end) <= torch.arange(item.start, end)[:, None]  # [T, L]
            mask = self._mask(visible).repeat(self._group, 1)  # [group * T, L]
        return ContinuedPrefillPart(rows, self._on_device(table), end, mask)

    def _mask(self, visible: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(visible.shape, dtype=self._dtype).masked_fill_(~visible, float("-inf"))
        return mask.to(self._device, non_blocking=True)

    def _on_device(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


def _cuts(lengths: Items[int]) -> list[int]:
    """Where groups of descending `lengths` start, so that none is padded to more than twice its length."""
    starts = [0]
    for row, length in enumerate(lengths):
        if length * _WASTE_ALLOWED < lengths[starts[-1]]:
            starts.append(row)
    return starts
