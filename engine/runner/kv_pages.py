"""The paged KV cache of a model that needs no torch: plain memory, whose pages are there once they are written to."""

from __future__ import annotations

import ctypes
import mmap

from engine.runner.kv_shape import KVShape


class KVPages:
    """Room for the keys and the values of `num_blocks` blocks in every layer; how a block lies is up to who computes.

    `addresses[i]` are those of layer i's keys and values; they are good for as long as this object lives.
    """

    def __init__(self, shape: KVShape, num_blocks: int, block_size: int) -> None:
        size = num_blocks * block_size * shape.num_kv_heads * shape.head_dim * shape.dtype.itemsize
        self._pages = mmap.mmap(-1, 2 * shape.num_layers * size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self.addresses = [
            (start + 2 * layer * size, start + (2 * layer + 1) * size) for layer in range(shape.num_layers)
        ]
