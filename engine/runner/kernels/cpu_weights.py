"""Weights for the CPU kernels: every matrix packed once, straight from the file, into one piece of memory.

Quantised blocks of a GGUF file keep their codes and scales. What is stored in another way is taken as bfloat16, which
is what the model would be loaded in anyway.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType

from engine.runner.kernels.cpu_library import Matrix
from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.progress import loading_bar
from engine.runner.weights.tensors import BFLOAT16, StoredBlocks, Tensors

_ALIGNMENT = 64


@dataclass(slots=True)
class _Place:
    """Where a matrix goes in the memory, and the type it comes in."""

    type_id: int
    rows: int
    columns: int
    offset: int
    blocks: StoredBlocks | None  # None: read as a tensor, packed as bfloat16


class PackedWeights:
    """The matrices of a model, packed; `num_bytes` is known before anything is read."""

    def __init__(self, library: ctypes.CDLL, tensors: Tensors, shapes: Mapping[str, tuple[int, int]]) -> None:
        self._library = library
        self._tensors: Tensors | None = tensors  # None once they are read: the file's pages need not stay in memory
        self._places: dict[str, _Place] = {}
        self.num_bytes = 0
        for name, (rows, columns) in shapes.items():
            blocks = self._usable_blocks(name, (rows, columns))
            place = _Place(BFLOAT16 if blocks is None else blocks.type_id, rows, columns, self.num_bytes, blocks)
            self._places[name] = place
            size = library.packed_bytes(place.type_id, rows, columns)
            self.num_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._memory: np.ndarray[Any, Any] | None = None

    @property
    def number_format(self) -> str:
        """The types of the matrices as GGUF names them, such as "Q4_1 and Q8_0"; the most frequent one first."""
        counts = Counter(GGMLQuantizationType(place.type_id).name for place in self._places.values())
        return " and ".join(name for name, _ in counts.most_common())

    def load(self, threads: int) -> None:
        """Read and pack every matrix; raises `ModelLoadError` for scales that cannot be kept as they are."""
        pages = mmap.mmap(-1, max(1, self.num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        self._memory = np.frombuffer(pages, np.uint8)
        with ThreadPoolExecutor(threads) as pool, loading_bar(len(self._places)) as advance:
            for _ in pool.map(self._pack, self._places):
                advance(1)
        self._tensors = None
        for place in self._places.values():
            place.blocks = None

    def matrix(self, name: str, bias: np.ndarray[Any, Any] | None = None) -> Matrix:
        """Matrix `name` for the kernels; both it and `bias` must stay alive while they are used."""
        place = self._places[name]
        return Matrix(
            tiles=self._address(place),
            bias=None if bias is None else bias.ctypes.data,
            kind=self._library.packed_kind(place.type_id),
            rows=place.rows,
            columns=place.columns,
        )

    def _usable_blocks(self, name: str, shape: tuple[int, int]) -> StoredBlocks | None:
        blocks = None if self._tensors is None else self._tensors.stored_blocks(name)
        if blocks is None or self._library.packed_kind(blocks.type_id) < 0:
            return None
        check_shape(name, blocks.shape, shape)
        return blocks

    def _address(self, place: _Place) -> int:
        if self._memory is None:
            raise RuntimeError("the weights are not loaded yet")
        return int(self._memory.ctypes.data) + place.offset

    def _pack(self, name: str) -> None:
        place = self._places[name]
        source, head_dim = self._source(name, place)
        inexact = self._library.pack_matrix(
            place.type_id, source.ctypes.data, place.rows, place.columns, head_dim, self._address(place)
        )
        if inexact:
            raise ModelLoadError(f"tensor {name} has scales that the CPU kernels cannot keep: give --cpu-kernels off")

    def _source(self, name: str, place: _Place) -> tuple[np.ndarray[Any, Any], int]:
        """The bytes to pack, and the size of heads whose rows still lie in pairs."""
        if place.blocks is not None:
            heads = place.blocks.interleaved_heads
            return place.blocks.data, place.rows // heads if heads else 0
        if self._tensors is None:
            raise RuntimeError("the weights are loaded already")
        floats = self._tensors.floats(name)
        check_shape(name, floats.shape, (place.rows, place.columns))
        return _bfloat16_bits(floats), 0


def check_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raises `ModelLoadError` for a tensor of another shape than the model needs."""
    if found != expected:
        raise ModelLoadError(f"tensor {name} has shape {list(found)}, but the model needs {list(expected)}")


def _bfloat16_bits(floats: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The nearest bfloat16 numbers, ties to even, as uint16."""
    bits = np.ascontiguousarray(floats).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
