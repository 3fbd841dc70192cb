"""The decodes of a step as one launch a layer: attention over the KV cache where it lies, without a gather.

A context is cut into so many parts that the GPU has work for all of its processors, however few sequences there are.
The number of parts depends on the batch's size alone, so that a captured launch fits any lengths.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch

from engine.core.scheduler_output import ScheduledSequence
from engine.runner.attention import AttentionPart
from engine.runner.device import to_device
from engine.runner.kernels.cuda_sources import KernelSource, Launcher, latent_attention, paged_attention
from engine.runner.kv_cache import LayerCache
from engine.runner.kv_shape import KVShape
from engine.runner.models.decoder_config import Window
from engine.runner.row_tables import RowTables

HEAD_DIMS, DTYPES, MOST_HEADS = (64, 80, 96, 128), (torch.bfloat16, torch.float16), 16
_MOST_LATENT, _PIECE = 576, 8  # numbers of a latent vector and its turned key, and how many are loaded at once
_LATENT_HEADS = 8  # of a block over latent vectors
_THREADS = 128
_BLOCKS_A_PROCESSOR, _MOST_PARTS = 4, 32


def why_not(shape: KVShape, group: int) -> str | None:
    """What keeps a model from the kernel, in a few words; None where nothing does."""
    if shape.dtype not in DTYPES:
        return str(shape.dtype).removeprefix("torch.")
    if (rank := shape.values_in_keys) is not None:
        fits = shape.head_dim <= _MOST_LATENT and not rank % _PIECE and not shape.head_dim % _PIECE
        return None if fits else f"latent vectors of {rank} and {shape.head_dim - rank}"
    if shape.head_dim not in HEAD_DIMS:
        return f"heads of {shape.head_dim}"
    return f"{group} heads a KV head" if group > MOST_HEADS else None


@dataclass(slots=True)
class PagedDecodePart:
    """Sequences with one new token each; an `AttentionPart` whose context is the layer's whole cache.

    `tables` int32 `[B, W]` are their blocks; each looks at its tokens from `begins` to `ends`, int32 `[B]`.
    """

    rows: slice | torch.Tensor
    attention: KernelAttention
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


class KernelAttention:
    """Attention of decodes by the kernel, for models whose shapes it knows; see `why_not`."""

    def __init__(self, launcher: Launcher, shape: KVShape, group: int, device: torch.device) -> None:
        self._launcher, self._device = launcher, device
        self._rank, self._num_kv_heads = shape.values_in_keys, shape.num_kv_heads
        self._source: KernelSource
        if self._rank is None:
            self.description, self._out_dim = "decodes by the kernel, prefills by SDPA", shape.head_dim
            self._source = paged_attention(shape.head_dim, group, shape.dtype)
        else:
            self.description, self._out_dim = "decodes by the kernel for latent vectors, prefills by SDPA", self._rank
            self._source = latent_attention(self._rank, shape.head_dim - self._rank, shape.dtype)

    def decodes(self, items: Items[ScheduledSequence], window: Window) -> PagedDecodePart:
        ends = np.asarray([item.start + 1 for item in items], np.int32)
        begins = np.zeros_like(ends) if window is None else np.maximum(ends - window, 0)
        width = max(len(item.sequence.block_table) for item in items)
        tables = np.zeros((len(items), width), np.int32)
        for row, item in enumerate(items):
            tables[row, : len(item.sequence.block_table)] = item.sequence.block_table
        arrays = (to_device(array, self._device) for array in (tables, begins, ends))
        return PagedDecodePart(slice(0, len(items)), self, *arrays)

    def chunks(self, items: Items[ScheduledSequence], first_row: int, window: Window) -> None:
        """The kernel knows none."""

    def recorded(self, tables: RowTables, windows: Items[Window]) -> KernelDecodes:
        return KernelDecodes(self, tables, windows, self._device)

    def _num_parts(self, num_blocks: int) -> int:
        """Into how many parts each context is cut where there would be `num_blocks` blocks without parts."""
        wanted = self._launcher.num_processors * _BLOCKS_A_PROCESSOR // num_blocks
        return max(1, min(wanted, _MOST_PARTS))

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, part: PagedDecodePart, scale: float
    ) -> torch.Tensor:
        """`query` `[B, heads, D]` over `keys`, `values` `[blocks, block_size, kv_heads, D]` -> `[B, heads, D]`.

        Over latent vectors the values lie in the keys, and the result is as wide as they are.
        """
        batch, heads, dim = query.shape
        if query.stride()[1:] != (dim, 1):
            query = query.contiguous()
        out = torch.empty(batch, heads, self._out_dim, dtype=query.dtype, device=query.device)
        blocks = self._num_kv_heads if self._rank is None else -(-heads // _LATENT_HEADS)
        number = self._num_parts(batch * blocks)
        parts = None
        if number > 1:
            parts = torch.empty(batch, heads, number, self._out_dim + 2, dtype=torch.float32, device=query.device)
        grid = (blocks, batch, number)
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
            np.int32(heads),
        )
        self._launcher.launch(self._source, "attend_parts", grid, _THREADS, arguments)
        if parts is not None:
            grid = (heads, batch, 1)
            self._launcher.launch(self._source, "combine_parts", grid, _THREADS, (out, parts, np.int32(number)))
        return out


class KernelDecodes:
    """Decodes as graphs read them: buffers for the largest bucket, of which a smaller one uses the first rows."""

    def __init__(
        self, attention: KernelAttention, host: RowTables, windows: Items[Window], device: torch.device
    ) -> None:
        self._attention, self._host, self._windows = attention, host, windows
        self._tables = torch.from_numpy(host.array).to(device, copy=True)  # int32 [rows, width]
        self._limits = torch.zeros(1 + len(windows), len(host.array), dtype=torch.int32, device=device)  # ends, begins

    def parts(self, bucket: int) -> dict[Window, list[AttentionPart]]:
        ends, *begins = self._limits[:, :bucket].unbind(0)
        tables = self._tables[:bucket]
        return {
            window: [PagedDecodePart(slice(0, bucket), self._attention, tables, begin, ends)]
            for window, begin in zip(self._windows, begins, strict=True)
        }

    def fill(self, items: Items[ScheduledSequence], bucket: int) -> None:
        limits = np.zeros((1 + len(self._windows), bucket), np.int32)
        limits[0] = 1
        limits[0, : len(items)] = [item.start + 1 for item in items]
        for place, window in enumerate(self._windows, 1):
            if window is not None:
                limits[place] = np.maximum(limits[0] - window, 0)
        device = self._limits.device
        self._limits[:, :bucket].copy_(to_device(limits, device))
        if width := self._host.update(items, bucket):
            changed = np.ascontiguousarray(self._host.array[:bucket, :width])
            self._tables[:bucket, :width].copy_(to_device(changed, device))
