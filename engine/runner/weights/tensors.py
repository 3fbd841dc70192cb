"""The weights of a model as torch tensors, by their names in a Hugging Face checkpoint.

Files are memory-mapped and read a tensor at a time, so that loading never holds two copies of the model.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from engine.runner.weights.errors import ModelLoadError

_SKIPPED_SUFFIXES = ("rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A matrix as it lies in a GGUF file: `data` is uint8 `[rows, bytes a row]`, memory-mapped; `type_id` is GGUF's.

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

    def stored_blocks(self, name: str) -> StoredBlocks | None:
        """Tensor `name` undecoded, where the format has blocks."""
        ...


class SafetensorsTensors:
    """The tensors of all *.safetensors files of a directory, with or without an index."""

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise ModelLoadError(f"{folder} holds no *.safetensors files; convert the weights to safetensors")
        self._homes: dict[str, Any] = {}
        for path in paths:
            try:
                opened: Any = safe_open(path, framework="pt")
            except SafetensorError as problem:
                raise ModelLoadError(f"{path} is damaged or cut short: {problem}") from problem
            names = (name for name in opened.keys() if not name.endswith(_SKIPPED_SUFFIXES))  # noqa: SIM118
            self._homes.update(dict.fromkeys(names, opened))

    @property
    def names(self) -> Set[str]:
        return self._homes.keys()

    def load(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._homes[name].get_tensor(name)
        return tensor

    def stored_blocks(self, name: str) -> StoredBlocks | None:
        return None
