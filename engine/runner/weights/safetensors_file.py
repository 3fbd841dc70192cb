"""A safetensors file: what it holds and where, read from its header, and its numbers as numpy arrays.

The `safetensors` package hands bfloat16 to torch alone; so the header, a JSON object behind its length, is read here.
"""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from engine.runner.weights.errors import ModelLoadError

_LENGTH_BYTES = 8
_NUMPY_NAMES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`type_name` is the file's own; `begin` and `end` are bytes from the start of the file."""

    type_name: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """One file, memory-mapped; raises `ModelLoadError` where it is damaged or cut short."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.tensors = dict(self._header())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise ModelLoadError(f"{path} is damaged or cut short: {problem}") from problem

    @cached_property
    def opened(self) -> Any:
        """The file as the `safetensors` package reads it, for torch."""
        from safetensors import SafetensorError, safe_open

        try:
            return safe_open(self.path, framework="pt")
        except SafetensorError as problem:
            raise ModelLoadError(f"{self.path} is damaged or cut short: {problem}") from problem

    def octets(self, name: str) -> np.ndarray[Any, Any]:
        """The stored bytes of tensor `name`, uint8, read-only: the file's own pages."""
        stored = self.tensors[name]
        return np.frombuffer(self._pages, np.uint8, stored.end - stored.begin, stored.begin)

    def floats(self, name: str) -> np.ndarray[Any, Any]:
        """Tensor `name` as float32, of its shape; raises `ModelLoadError` for numbers that are no floats."""
        stored = self.tensors[name]
        if stored.type_name not in _NUMPY_NAMES:
            raise ModelLoadError(f"{self.path}: tensor {name} is stored as {stored.type_name}, which is not supported")
        numbers = self.octets(name).view(_NUMPY_NAMES[stored.type_name]).reshape(stored.shape)
        if stored.type_name == "BF16":
            return (numbers.astype(np.uint32) << 16).view(np.float32)
        return numbers.astype(np.float32)

    def _header(self) -> Any:
        start = _LENGTH_BYTES + int.from_bytes(self._pages[:_LENGTH_BYTES], "little")
        for name, entry in json.loads(self._pages[_LENGTH_BYTES:start]).items():
            if name == "__metadata__":
                continue
            begin, end = (start + offset for offset in entry["data_offsets"])
            stored = StoredTensor(entry["dtype"], tuple(entry["shape"]), begin, end)
            if not start <= begin <= end <= len(self._pages) or not _fits(stored):
                raise ValueError(f"tensor {name} does not lie within the file")
            yield name, stored


def _fits(stored: StoredTensor) -> bool:
    """Whether a tensor's bytes are as many as its shape says, where the size of its numbers is known here."""
    name = _NUMPY_NAMES.get(stored.type_name)
    return name is None or prod(stored.shape) * np.dtype(name).itemsize == stored.end - stored.begin
