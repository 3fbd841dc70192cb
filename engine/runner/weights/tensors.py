"""The weights of a model, by their names in a Hugging Face checkpoint: as torch tensors, as numpy arrays, or as stored.

Files are memory-mapped and read a tensor at a time, so that loading never holds two copies of the model.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.safetensors_file import SafetensorsFile

if TYPE_CHECKING:
    import torch

BFLOAT16 = 30
"""GGUF's number for bfloat16."""

_SKIPPED_SUFFIXES = ("rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A matrix as it lies in a file: `data` is uint8 `[rows, bytes a row]`, memory-mapped; `type_id` is GGUF's number.

    `interleaved_heads` is the number of heads whose rows lie as neighbouring pairs, 0 where they are in order.
    """

    type_id: int
    shape: tuple[int, ...]
    data: np.ndarray[Any, Any]
    interleaved_heads: int


class Tensors(Protocol):
    """Named weights, read one at a time."""

    @property
    def names(self) -> Set[str]:
        """The names there are."""
        ...

    def load(self, name: str) -> torch.Tensor:
        """Tensor `name`, in the precision in which it is stored; it may share memory with the file: do not write."""
        ...

    def floats(self, name: str) -> np.ndarray[Any, Any]:
        """Tensor `name` as float32; needs no torch."""
        ...

    def stored_blocks(self, name: str) -> StoredBlocks | None:
        """Tensor `name` undecoded, where the format has blocks."""
        ...


class SafetensorsTensors:
    """The tensors of all *.safetensors files of a directory, with or without an index."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise ModelLoadError(f"{folder} holds no *.safetensors files; convert the weights to safetensors")
        self._homes: dict[str, SafetensorsFile] = {}
        for file in map(SafetensorsFile, paths):
            names = (name for name in file.tensors if not name.endswith(_SKIPPED_SUFFIXES))
            self._homes.update(dict.fromkeys(names, file))

    @property
    def names(self) -> Set[str]:
        return self._homes.keys()

    def load(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._homes[name].opened.get_tensor(name)
        return tensor

    def floats(self, name: str) -> np.ndarray[Any, Any]:
        return self._homes[name].floats(name)

    def stored_blocks(self, name: str) -> StoredBlocks | None:
        file = self._homes[name]
        stored = file.tensors[name]
        if stored.type_name != "BF16" or len(stored.shape) != 2:
            return None
        return StoredBlocks(BFLOAT16, stored.shape, file.octets(name).reshape(stored.shape[0], -1), 0)
