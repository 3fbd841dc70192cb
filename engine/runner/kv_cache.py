"""The paged KV cache: for each layer, keys and values of `num_blocks` blocks of `block_size` tokens.

A block lies as `[block_size, kv_heads, head_dim]`: one `index_select` of whole blocks brings a sequence's context
together in the order of its tokens, twice as fast as with the heads outermost. Where values are a part of the keys, as
with compressed attention, keys alone are stored.
"""

from __future__ import annotations

import mmap
from math import prod

import torch

from engine.runner.kv_shape import KVShape

__all__ = ["KVCache", "KVShape", "LayerCache"]


class LayerCache:
    """Keys and values of one layer, each `[num_blocks, block_size, kv_heads, head_dim]`.

    With `values_in_keys`, `values` is a view of `keys`, and writing keys is enough.
    """

    __slots__ = ("_flat_keys", "_flat_values", "_values_in_keys", "keys", "values")

    def __init__(self, keys: torch.Tensor, values: torch.Tensor | None, values_in_keys: int | None = None) -> None:
        self.keys, self._values_in_keys = keys, values_in_keys
        self.values = keys[..., :values_in_keys] if values is None else values
        self._flat_keys = keys.flatten(0, 1)
        self._flat_values = None if values is None else values.flatten(0, 1)

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store `key` and `value` `[T, kv_heads, head_dim]` at `slots` `[T]` (block * block_size + offset)."""
        self._flat_keys.index_copy_(0, slots, key)
        if self._flat_values is not None:
            self._flat_values.index_copy_(0, slots, value)

    def gather(self, blocks: torch.Tensor, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `batch` rows of `blocks` (flat), the first `length` tokens of each.

        Both are `[B, kv_heads, length, head_dim]`.
        """
        keys = _gathered(self.keys, blocks, batch, length)
        if self._flat_values is None:
            return keys, keys[..., : self._values_in_keys]
        return keys, _gathered(self.values, blocks, batch, length)


class KVCache:
    """All layers' caches; `layers[i]` belongs to layer i."""

    def __init__(self, shape: KVShape, num_blocks: int, block_size: int, device: torch.device) -> None:
        size = (num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        self.layers = [
            LayerCache(
                _zeros(size, shape.dtype, device),
                _zeros(size, shape.dtype, device) if shape.values_in_keys is None else None,
                shape.values_in_keys,
            )
            for _ in range(shape.num_layers)
        ]


def _gathered(stored: torch.Tensor, blocks: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    gathered = stored.index_select(0, blocks)  # [B * blocks a row, block_size, kv_heads, D]
    rows = gathered.view(batch, -1, *stored.shape[2:])
    return rows[:, :length].transpose(1, 2)


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on the CPU as fresh pages, which take memory only once they are written to."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    pages = mmap.mmap(-1, prod(size) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(size)
