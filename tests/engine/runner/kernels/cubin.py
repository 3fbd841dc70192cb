"""What a compiled CUDA image says of its kernels: registers a thread and shared memory a block, read from the ELF."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_REGISTERS, _BYTE_COUNTED = 0x2F, 4  # an attribute's number, and the format of those that give their size


class Section(NamedTuple):
    begin: int
    size: int


def registers(image: bytes) -> dict[str, int]:
    """Registers a thread of every kernel needs, by name."""
    sections = dict(_sections(image))
    found = {}
    for symbol, count in _register_counts(image, sections[".nv.info"]):
        found[_symbol_name(image, sections, symbol)] = count
    return found


def shared_bytes(image: bytes, kernel: str) -> int:
    """Shared memory that a block of `kernel` has from the start."""
    sections = dict(_sections(image))
    name = f".nv.shared.{kernel}"
    return sections[name].size if name in sections else 0


def _sections(image: bytes) -> Iterator[tuple[str, Section]]:
    (table,) = struct.unpack_from("<Q", image, 0x28)
    size, number, names_index = struct.unpack_from("<HHH", image, 0x3A)
    entries = [struct.unpack_from("<IIQQQQ", image, table + index * size) for index in range(number)]
    for name, _, _, _, begin, length in entries:
        yield _text(image, entries[names_index][4] + name), Section(begin, length)


def _register_counts(image: bytes, info: Section) -> Iterator[tuple[int, int]]:
    place = info.begin
    while place < info.begin + info.size:
        kind, attribute, size = struct.unpack_from("<BBH", image, place)
        place += 4
        if attribute == _REGISTERS:
            symbol, count = struct.unpack_from("<II", image, place)
            yield symbol, count
        place += size if kind == _BYTE_COUNTED else 0


def _symbol_name(image: bytes, sections: dict[str, Section], symbol: int) -> str:
    (name,) = struct.unpack_from("<I", image, sections[".symtab"].begin + symbol * 24)
    return _text(image, sections[".strtab"].begin + name)


def _text(image: bytes, begin: int) -> str:
    return image[begin : image.index(b"\0", begin)].decode()
