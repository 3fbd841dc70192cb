"""What decides the size of a KV cache: known from a model's configuration, whatever stores and computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KVShape:
    """What decides the size of a KV cache block.

    `dtype` is torch's, or whatever else has an `itemsize`. With `values_in_keys`, values are the first so many numbers
    of each key and take no memory of their own.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: Any
    values_in_keys: int | None = None

    def bytes_a_block(self, block_size: int) -> int:
        """Bytes of one block over all layers, keys and values."""
        stored = self.head_dim * (2 if self.values_in_keys is None else 1)
        size: int = self.num_layers * block_size * self.num_kv_heads * stored * self.dtype.itemsize
        return size
