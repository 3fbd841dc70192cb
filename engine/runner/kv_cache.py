"""The paged KV cache: for each layer, keys and values of `num_blocks` blocks of `block_size` tokens.

A block lies as `[block_size, kv_heads, head_dim]`: one `index_select` of whole blocks brings a sequence's context
together in the order of its tokens, twice as fast as with the heads outermost.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from math import prod

import torch


@dataclass(frozen=True, slots=True)
class KVShape:
    """What decides the size of a KV cache block."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def bytes_a_block(self, block_size: int) -> int:
        """Bytes of one block over all layers, keys and values."""
        return 2 * self.num_layers * block_size * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class LayerCache:
    """Keys and values of one layer, each `[num_blocks, block_size, kv_heads, head_dim]`."""

    __slots__ = ("_flat_keys", "_flat_values", "keys", "values")

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys, self.values = keys, values
        self._flat_keys, self._flat_values = keys.flatten(0, 1), values.flatten(0, 1)

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store `key` and `value` `[T, kv_heads, head_dim]` at `slots` `[T]` (block * block_size + offset)."""
        self._flat_keys.index_copy_(0, slots, key)
        self._flat_values.index_copy_(0, slots, value)

    @staticmethod
    def gather(stored: torch.Tensor, blocks: torch.Tensor, batch: int, length: int) -> torch.Tensor:
        """The first `length` tokens of `batch` rows of `blocks` (flat) as `[B, kv_heads, length, head_dim]`."""
        gathered = stored.index_select(0, blocks)  # [B * blocks a row, block_size, kv_heads, D]
        rows = gathered.view(batch, -1, *stored.shape[2:])
        return rows[:, :length].transpose(1, 2)


class KVCache:
    """All layers' caches; `layers[i]` belongs to layer i."""

    def __init__(self, shape: KVShape, num_blocks: int, block_size: int, device: torch.device) -> None:
        size = (num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        self.layers = [
            LayerCache(_zeros(size, shape.dtype, device), _zeros(size, shape.dtype, device))
            for _ in range(shape.num_layers)
        ]


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on the CPU as fresh pages, which take memory only once they are written to."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    pages = mmap.mmap(-1, prod(size) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(size)
