"""Tensors that some checkpoints keep in one piece, handed out as the parts by which models ask for them.

One table names the pieces. Which rows of a piece are which part follows from the shapes of the parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.runner.weights.tensors import StoredBlocks, Tensors

if TYPE_CHECKING:
    import torch

_FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
_STACKED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_MODULE = re.compile(r"(model\.layers\.\d+\.)([\w.]+)\.(weight|bias)")
_EXPERTS = re.compile(r"(model\.layers\.\d+\.mlp\.experts\.)(gate_up_proj|down_proj)")


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a stored tensor; of its entry `index`, where it is a stack."""

    stored: str
    index: int | None
    begin: int
    end: int

    def of(self, whole: Any) -> Any:
        """This part of the stored tensor or array."""
        return (whole if self.index is None else whole[self.index])[self.begin : self.end]


class SplitTensors:
    """`tensors` with the parts of fused ones in their place; see `Tensors` for the interface."""

    def __init__(self, tensors: Tensors, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._tensors = tensors
        self._parts = {name: part for stored in tensors.names for name, part in _parts_of(stored, shapes)}
        self._names = (tensors.names - {part.stored for part in self._parts.values()}) | self._parts.keys()

    @property
    def names(self) -> Set[str]:
        return self._names

    def load(self, name: str) -> torch.Tensor:
        part = self._parts.get(name)
        whole = self._tensors.load(name if part is None else part.stored)
        return whole if part is None else part.of(whole)

    def floats(self, name: str) -> np.ndarray[Any, Any]:
        part = self._parts.get(name)
        whole = self._tensors.floats(name if part is None else part.stored)
        return whole if part is None else part.of(whole)

    def stored_blocks(self, name: str) -> StoredBlocks | None:
        return None if name in self._parts else self._tensors.stored_blocks(name)


def _parts_of(stored: str, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, _Part]]:
    """The parts in the tensor `stored`, by name; none where it is no fused one, or the model has no such parts."""
    module, experts = _MODULE.fullmatch(stored), _EXPERTS.fullmatch(stored)
    if module and module[2] in _FUSED:
        names = [f"{module[1]}{part}.{module[3]}" for part in _FUSED[module[2]]]
        yield from _rows(stored, None, names, shapes)
    index = 0
    while experts and f"{experts[1]}{index}.down_proj.weight" in shapes:
        names = [f"{experts[1]}{index}.{part}.weight" for part in _STACKED[experts[2]]]
        yield from _rows(stored, index, names, shapes)
        index += 1


def _rows(
    stored: str, index: int | None, names: list[str], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, _Part]]:
    begin = 0
    for name in names if all(name in shapes for name in names) else ():
        yield name, _Part(stored, index, begin, begin + shapes[name][0])
        begin += shapes[name][0]
