"""The decodes of a step as one launch a layer: attention over the KV cache where it lies, without a gather.

A context is cut into so many parts that the GPU has work for all of its processors, however few sequences there are.
The number of parts depends on the batch's size alone, so that a captured launch fits any lengths.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.core.scheduler_output import ScheduledSequence
from engine.runner.kernels.cuda_sources import KernelSource, Launcher, paged_attention
from engine.runner.kv_cache import KVShape, LayerCache

HEAD_DIMS, DTYPES, MOST_HEADS = (64, 128), (torch.bfloat16, torch.float16), 16
_THREADS = 128
_BLOCKS_A_PROCESSOR, _MOST_PARTS = 4, 32


def why_not(shape: KVShape, group: int) -> str | None:
    """What keeps a model from the kernel, in a few words; None where nothing does."""
    if shape.values_in_keys is not None:
        return "compressed attention"
    if shape.head_dim not in HEAD_DIMS:
        return f"heads of {shape.head_dim}"
    if shape.dtype not in DTYPES:
        return str(shape.dtype).removeprefix("torch.")
    return f"{group} heads a KV head" if group > MOST_HEADS else None


@dataclass(slots=True)
class PagedDecodePart:
    """Sequences with one new token each; an `AttentionPart` whose context is the layer's whole cache.

    `tables` int32 `[B, W]` are their blocks; each looks at its tokens from `begins` to `ends`, int32 `[B]`.
    """

    rows: slice | torch.Tensor
    attention: PagedAttention
    tables: torch.Tensor
    begins: torch.Tensor
    ends: torch.Tensor

    @property
    def one_token_each(self) -> bool:
        return True

    def context(self, key: torch.Tensor, value: torch.Tensor, cache: LayerCache) -> tuple[torch.Tensor, torch.Tensor]:
        return cache.keys, cache.values

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        return self.attention.attend(query, keys, values, self, scale)


class PagedAttention:
    """Attention of decodes for models whose shapes the kernel knows; see `why_not`."""

    def __init__(self, launcher: Launcher, shape: KVShape, group: int) -> None:
        self._launcher, self._shape, self._group = launcher, shape, group
        self._source: KernelSource = paged_attention(shape.head_dim, group, shape.dtype)

    def part(self, items: Items[ScheduledSequence], window: int | None, device: torch.device) -> PagedDecodePart:
        """The part of `items`, which are the first rows of a batch."""
        ends = np.asarray([item.start + 1 for item in items], np.int32)
        begins = np.zeros_like(ends) if window is None else np.maximum(ends - window, 0)
        width = max(len(item.sequence.block_table) for item in items)
        tables = np.zeros((len(items), width), np.int32)
        for row, item in enumerate(items):
            tables[row, : len(item.sequence.block_table)] = item.sequence.block_table
        return PagedDecodePart(
            slice(0, len(items)), self, *(_on_device(array, device) for array in (tables, begins, ends))
        )

    def num_parts(self, batch: int) -> int:
        """Into how many parts each context is cut for a batch of `batch` sequences."""
        wanted = self._launcher.num_processors * _BLOCKS_A_PROCESSOR // (batch * self._shape.num_kv_heads)
        return max(1, min(wanted, _MOST_PARTS))

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, part: PagedDecodePart, scale: float
    ) -> torch.Tensor:
        """`query` `[B, heads, D]` over `keys`, `values` `[blocks, block_size, kv_heads, D]` -> `[B, heads, D]`."""
        batch, heads, dim = query.shape
        if query.stride()[1:] != (dim, 1):
            query = query.contiguous()
        out = torch.empty(batch, heads, dim, dtype=query.dtype, device=query.device)
        number = self.num_parts(batch)
        parts = None
        if number > 1:
            parts = torch.empty(batch, heads, number, dim + 2, dtype=torch.float32, device=query.device)
        grid = (self._shape.num_kv_heads, batch, number)
        arguments = (
            out,
            query,
            np.int32(query.stride(0)),
            keys,
            values,
            part.tables,
            np.int32(part.tables.shape[1]),
            part.begins,
            part.ends,
            np.int32(keys.shape[1]),
            np.float32(scale),
            parts,
        )
        self._launcher.launch(self._source, "attend_parts", grid, _THREADS, arguments)
        if parts is not None:
            grid = (heads, batch, 1)
            self._launcher.launch(self._source, "combine_parts", grid, _THREADS, (out, parts, np.int32(number)))
        return out


def _on_device(array: Any, device: torch.device) -> torch.Tensor:
    host = torch.from_numpy(array)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)
