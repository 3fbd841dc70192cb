"""The tensors of a GGUF file, dequantised, by their names in a Hugging Face checkpoint.

Each of those names has a place: a tensor of the file, one expert of a stacked tensor, or two tensors to be joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.runner.weights.gguf_file import GgufFile
from engine.runner.weights.gguf_names import checkpoint_name, expert_names, interleaved_heads_key, split_latent
from engine.runner.weights.tensors import StoredBlocks

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class _Whole:
    """A tensor of the file; with `heads`, its rows are put in order, which lie as neighbouring pairs in each head."""

    stored: str
    heads: int = 0

    def array(self, file: GgufFile) -> Array:
        array = file.array(self.stored)
        return _half_split(array, self.heads) if self.heads else array

    def blocks(self, file: GgufFile) -> StoredBlocks | None:
        tensor = file.tensors[self.stored]
        return StoredBlocks(tensor.type_id, tensor.shape, file.blocks(self.stored), self.heads)


@dataclass(frozen=True, slots=True)
class _Expert:
    """One matrix of a stack of them."""

    stored: str
    index: int

    def array(self, file: GgufFile) -> Array:
        return file.array(self.stored, self.index)

    def blocks(self, file: GgufFile) -> StoredBlocks | None:
        tensor = file.tensors[self.stored]
        return StoredBlocks(tensor.type_id, tensor.shape[1:], file.blocks(self.stored)[self.index], 0)


@dataclass(frozen=True, slots=True)
class _KeysAndValues:
    """Both parts of compressed attention: `keys` `[heads, rank, D]` are stored turned, `values` `[heads, D, rank]`."""

    keys: str
    values: str

    def array(self, file: GgufFile) -> Array:
        keys, values = file.array(self.keys), file.array(self.values)
        joined = np.concatenate((keys.swapaxes(1, 2), values), axis=1)  # [heads, D of both, rank]
        return joined.reshape(-1, joined.shape[2])

    def blocks(self, file: GgufFile) -> StoredBlocks | None:
        return None


_Place = _Whole | _Expert | _KeysAndValues


class GgufTensors:
    """The tensors of a GGUF file; see `Tensors` for the interface."""

    def __init__(self, path: Path) -> None:
        self.file = GgufFile(path)
        self._places = dict(place for name in self.file.tensors for place in self._places_of(name))

    @property
    def names(self) -> Set[str]:
        return self._places.keys()

    def load(self, name: str) -> torch.Tensor:
        import torch

        array = self._places[name].array(self.file)
        if not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(array)

    def floats(self, name: str) -> Array:
        return self._places[name].array(self.file).astype(np.float32)

    def stored_blocks(self, name: str) -> StoredBlocks | None:
        return self._places[name].blocks(self.file)

    def _places_of(self, stored: str) -> Iterator[tuple[str, _Place]]:
        experts = expert_names(stored, self.file.tensors[stored].shape[0])
        latent = split_latent(stored)
        if experts is not None:
            yield from ((name, _Expert(stored, index)) for index, name in enumerate(experts))
        elif latent is not None and latent[0] in self.file.tensors:
            yield latent[1], _KeysAndValues(stored, latent[0])
        elif not self._is_value_part(stored):
            yield checkpoint_name(stored), _Whole(stored, self._interleaved_heads(stored))

    def _is_value_part(self, stored: str) -> bool:
        return stored.endswith("attn_v_b.weight") and stored.replace("attn_v_b", "attn_k_b") in self.file.tensors

    def _interleaved_heads(self, stored: str) -> int:
        architecture = self.file.metadata["general.architecture"]
        key = interleaved_heads_key(stored, architecture)
        if key is None:
            return 0
        heads = self.file.metadata[f"{architecture}.attention.head_count"]
        return int(self.file.metadata.get(f"{architecture}.{key}", heads))


def _half_split(array: Array, heads: int) -> Array:
    """Rows x0 y0 x1 y1 ... of each head -> x0 x1 ... y0 y1 ...; `[heads * head_dim, ...]`."""
    paired = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(array.shape)
