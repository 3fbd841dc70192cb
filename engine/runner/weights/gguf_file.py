"""A GGUF file: its metadata, and where its tensors lie.

The header is parsed here, with `struct`, in some 50 ms: the `gguf` package makes an array of every string of a
vocabulary and takes seconds. Tensor data stay memory-mapped; the package dequantises them when they are read.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2s
from pathlib import Path
from struct import Struct, error
from typing import TYPE_CHECKING, Any

from engine.runner.weights.errors import ModelLoadError

if TYPE_CHECKING:
    import numpy as np

_VERSIONS = (2, 3)
_U32 = Struct("<I")
_U64 = Struct("<Q")
_STRING, _ARRAY = 8, 9
_ROWS_BYTES = 2**18  # stored bytes that are dequantised together
_SCALARS = {
    0: Struct("<B"),
    1: Struct("<b"),
    2: Struct("<H"),
    3: Struct("<h"),
    4: Struct("<I"),
    5: Struct("<i"),
    6: Struct("<f"),
    7: Struct("<?"),
    10: Struct("<Q"),
    11: Struct("<q"),
    12: Struct("<d"),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies: `shape` is outermost first, `offset` in bytes from the start of the tensor data."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


class GgufFile:
    """The parsed header of one GGUF file; raises `ModelLoadError` for a file that is none, or is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelLoadError(f"{path} is not a GGUF file")
            header = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._parse(header)
        except (error, IndexError, UnicodeDecodeError) as damage:
            raise ModelLoadError(f"{path} is damaged or cut short: its GGUF header cannot be read") from damage
        finally:
            header.close()

    def _parse(self, header: mmap.mmap) -> None:
        cursor = _Cursor(header, 4)
        version = cursor.scalar(_U32)
        if version not in _VERSIONS:
            raise ModelLoadError(f"{self.path} has GGUF version {version}; supported: 2 and 3, little-endian")
        num_tensors, num_fields = cursor.scalar(_U64), cursor.scalar(_U64)
        self.metadata: dict[str, Any] = {}
        for _ in range(num_fields):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.scalar(_U32))
        self.tensors: dict[str, GgufTensor] = {}
        for _ in range(num_tensors):
            tensor = cursor.tensor()
            self.tensors[tensor.name] = tensor
        alignment = self.metadata.get("general.alignment", 32)
        self.data_offset = -(-cursor.position // alignment) * alignment
        self.fingerprint = blake2s(header[: cursor.position] + _U64.pack(self.size), digest_size=6).hexdigest()

    @cached_property
    def _data(self) -> np.ndarray[Any, Any]:
        import numpy as np

        return np.memmap(self.path, mode="r").view(np.ndarray)  # plain: slices of the subclass are slow to make

    def type_name(self, name: str) -> str:
        """The storage format of tensor `name`, such as "Q4_1"."""
        return str(self._quantisation(self.tensors[name]).name)

    def blocks(self, name: str) -> np.ndarray[Any, Any]:
        """The stored bytes of tensor `name`, memory-mapped: uint8 `[outer dimensions..., bytes a row]`."""
        from gguf.quants import quant_shape_to_byte_shape

        tensor = self.tensors[name]
        try:
            shape = quant_shape_to_byte_shape(tensor.shape, self._quantisation(tensor))
        except ValueError as problem:
            raise ModelLoadError(f"{self.path}: tensor {name} is misshapen: {problem}") from problem
        size = 1
        for length in shape:
            size *= length
        start = self.data_offset + tensor.offset
        if start + size > self.size:
            raise ModelLoadError(f"{self.path} is cut short: tensor {name} ends past the end of the file")
        return self._data[start : start + size].reshape(shape)

    def array(self, name: str, index: int | None = None) -> np.ndarray[Any, Any]:
        """Tensor `name` dequantised: float16 where it is stored so, else float32, of the tensor's shape.

        With `index`, only that entry along the tensor's outermost dimension.
        """
        import numpy as np

        quantisation = self._quantisation(self.tensors[name])
        blocks, shape = self.blocks(name), self.tensors[name].shape
        if index is not None:
            blocks, shape = blocks[index], shape[1:]
        if quantisation.name in ("F32", "F16", "F64"):
            return blocks.view({"F32": np.float32, "F16": np.float16, "F64": np.float64}[quantisation.name])
        try:
            return _dequantised(blocks, shape, quantisation)
        except NotImplementedError as problem:
            raise ModelLoadError(
                f"{self.path}: tensor {name} is stored as {quantisation.name}, which cannot be dequantised; "
                "use a file with another quantisation"
            ) from problem

    def _quantisation(self, tensor: GgufTensor) -> Any:
        from gguf.constants import GGMLQuantizationType

        try:
            return GGMLQuantizationType(tensor.type_id)
        except ValueError as problem:
            raise ModelLoadError(
                f"{self.path}: tensor {tensor.name} has the unknown type {tensor.type_id}; update the gguf package"
            ) from problem


def _dequantised(blocks: np.ndarray[Any, Any], shape: tuple[int, ...], quantisation: Any) -> np.ndarray[Any, Any]:
    """Some rows at a time: the package's own intermediate arrays are several times as large as what they make."""
    import numpy as np
    from gguf.quants import dequantize

    rows = blocks.reshape(-1, blocks.shape[-1])
    out = np.empty((rows.shape[0], shape[-1]), np.float32)
    step = max(1, _ROWS_BYTES // rows.shape[1])
    for begin in range(0, rows.shape[0], step):
        out[begin : begin + step] = dequantize(rows[begin : begin + step], quantisation)
    return out.reshape(shape)


class _Cursor:
    """Reads values one after another from a GGUF header."""

    __slots__ = ("_header", "position")

    def __init__(self, header: mmap.mmap, position: int) -> None:
        self._header = header
        self.position = position

    def scalar(self, form: Struct) -> Any:
        (value,) = form.unpack_from(self._header, self.position)
        self.position += form.size
        return value

    def string(self) -> str:
        length = self.scalar(_U64)
        start, end = self.position, self.position + length
        if end > len(self._header):
            raise IndexError(end)
        self.position = end
        return self._header[start:end].decode()

    def value(self, type_id: int) -> Any:
        if type_id == _STRING:
            return self.string()
        if type_id == _ARRAY:
            return self._array()
        if type_id not in _SCALARS:
            raise ModelLoadError(f"the GGUF header holds a value of unknown type {type_id}")
        return self.scalar(_SCALARS[type_id])

    def _array(self) -> list[Any]:
        type_id, length = self.scalar(_U32), self.scalar(_U64)
        if length > len(self._header):
            raise IndexError(length)
        if type_id not in _SCALARS:
            return [self.value(type_id) for _ in range(length)]
        values = Struct(f"<{length}{_SCALARS[type_id].format[1:]}")
        unpacked = list(values.unpack_from(self._header, self.position))
        self.position += values.size
        return unpacked

    def tensor(self) -> GgufTensor:
        name = self.string()
        lengths = [self.scalar(_U64) for _ in range(self.scalar(_U32))]
        return GgufTensor(name, tuple(reversed(lengths)), self.scalar(_U32), self.scalar(_U64))
