"""The first frame of a GIF, cut out as a file of its own.

Decoders disagree about what follows the first frame and about frames that leave the screen. Here the frame becomes a
GIF of exactly its own size; whoever decodes that pastes it onto the screen.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from recipe.image.error import ImageFault
from recipe.image.resize import Size

_EXTENSION, _IMAGE, _TRAILER = 0x21, 0x2C, b"\x3b"
_GRAPHIC_CONTROL = 0xF9
_SCREEN_END = 13


class GifFrame(NamedTuple):
    """A frame of `size` pixels whose upper left corner is at `left`, `top` of the screen; `file` is a GIF of it."""

    file: bytes
    screen: Size
    size: Size
    left: int
    top: int


def first_frame(data: bytes) -> GifFrame:
    """The first frame of the GIF `data`. Raises ImageFault("Decode") if there is none, or only a part of it."""
    try:
        return _first_frame(data)
    except (struct.error, IndexError):
        raise ImageFault("Decode") from None


def _first_frame(data: bytes) -> GifFrame:
    screen = Size(*struct.unpack_from("<HH", data, 6))
    palette_end = _SCREEN_END + _palette_bytes(data[10])
    control = b""
    position = palette_end
    while data[position] == _EXTENSION:
        end = _blocks_end(data, position + 2)
        if data[position + 1] == _GRAPHIC_CONTROL:
            control = data[position:end]
        position = end
    if data[position] != _IMAGE:
        raise ImageFault("Decode")
    left, top, width, height, flags = struct.unpack_from("<HHHHB", data, position + 1)
    pixels = position + 10 + _palette_bytes(flags)
    size = Size(width, height)
    head = data[:6] + struct.pack("<HH", *size) + data[10:palette_end]
    descriptor = struct.pack("<BHHHHB", _IMAGE, 0, 0, *size, flags)
    body = data[position + 10 : _blocks_end(data, pixels + 1)]
    return GifFrame(head + control + descriptor + body + _TRAILER, screen, size, left, top)


def _palette_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _blocks_end(data: bytes, position: int) -> int:
    """Where a chain of data blocks ends: each has a length byte in front, a length of zero closes the chain."""
    while length := data[position]:
        position += length + 1
    return position + 1
