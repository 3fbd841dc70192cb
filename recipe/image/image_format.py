"""What an image file is, and how large it says it is, read from its first bytes.

So a bomb is refused before it is decoded. One reader a format: it returns the size once the header declares one and
raises `ImageFault("Decode")` when the header is broken. `check_header` finally asks for the start of the pixel data, so
that later failures can only be in the pixels.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Literal, TypeAlias

from recipe.image.error import ImageFault
from recipe.image.resize import Size

ImageFormat: TypeAlias = Literal["png", "jpeg", "gif", "webp"]

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}  # by colour type
_JPEG_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a length
_JPEG_SOS, _JPEG_EOI = 0xDA, 0xD9
_WEBP_HEAD_BYTES = 76  # up to the pixel data of the first frame of an animation


def sniff(data: bytes) -> ImageFormat | None:
    """The format that the first bytes of a file show, whatever its name or media type says."""
    if data[:4] == _PNG_SIGNATURE[:4]:
        return "png"
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if data[:3] == b"GIF":
        return "gif"
    if data[8:12] == b"WEBP":
        return "webp"
    return None


def check_header(data: bytes, max_dimension_px: int) -> ImageFormat:
    """The format of an image file that is worth decoding.

    Raises ImageFault: EmptyImage, UnsupportedMediaType, Decode, or ImageDimensionsTooLarge if a side is too long.
    """
    if not data:
        raise ImageFault("EmptyImage")
    name = sniff(data)
    if name is None:
        raise ImageFault("UnsupportedMediaType")
    try:
        size = _READERS[name](data)
    except (struct.error, IndexError):
        raise ImageFault("Decode") from None
    if max(size) > max_dimension_px:
        raise ImageFault("ImageDimensionsTooLarge")
    if name == "png" and not _has_png_pixels(data):
        raise ImageFault("Decode")
    if 0 in size:
        raise ImageFault("EmptyImage" if name == "gif" else "Decode")
    return name


def _png_size(data: bytes) -> Size:
    length, kind, width, height, depth, colour, *methods = struct.unpack_from(">I4sIIBBBBB", data, 8)
    (crc,) = struct.unpack_from(">I", data, 29)
    sound = data.startswith(_PNG_SIGNATURE) and length == 13 and kind == b"IHDR" and crc == zlib.crc32(data[12:29])
    if not sound or depth not in _PNG_DEPTHS.get(colour, ()) or methods[:2] != [0, 0] or methods[2] > 1:
        raise ImageFault("Decode")
    return Size(width, height)


def _has_png_pixels(data: bytes) -> bool:
    """Whether sound chunks lead to the first one with pixels."""
    position = len(_PNG_SIGNATURE)
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"IDAT":
            return True
        end = position + 8 + length
        if data[end : end + 4] != zlib.crc32(data[position + 4 : end]).to_bytes(4, "big"):
            return False
        position = end + 4
    return False


def _jpeg_size(data: bytes) -> Size:
    size: Size | None = None
    position = 2
    while True:
        marker, position = _jpeg_marker(data, position)
        if marker in _JPEG_BARE:
            continue
        if marker == _JPEG_SOS and size is not None:
            return size
        if marker in (_JPEG_SOS, _JPEG_EOI):
            raise ImageFault("Decode")
        (length,) = struct.unpack_from(">H", data, position)
        if marker in _JPEG_SOF:
            height, width = struct.unpack_from(">HH", data, position + 3)
            size = Size(width, height)
        position += length


def _jpeg_marker(data: bytes, position: int) -> tuple[int, int]:
    """The next marker at or behind `position`, and where its segment begins."""
    position = data.find(b"\xff", position)
    if position < 0:
        raise ImageFault("Decode")
    while data[position] == 0xFF:
        position += 1
    return data[position], position + 1


def _gif_size(data: bytes) -> Size:
    if data[:6] not in (b"GIF87a", b"GIF89a"):
        raise ImageFault("Decode")
    return Size(*struct.unpack_from("<HH", data, 6))


def _webp_size(data: bytes) -> Size:
    reader = _WEBP_READERS.get(data[12:16])
    if reader is None or data[:4] != b"RIFF":
        raise ImageFault("Decode")
    return reader(data)


def _vp8_size(data: bytes) -> Size:
    if data[20] & 1 or data[23:26] != b"\x9d\x01\x2a":  # not a key frame, or no start code
        raise ImageFault("Decode")
    width, height = struct.unpack_from("<HH", data, 26)
    return Size(width & 0x3FFF, height & 0x3FFF)


def _vp8l_size(data: bytes) -> Size:
    signature, bits = struct.unpack_from("<BI", data, 20)
    if signature != 0x2F or bits >> 29:
        raise ImageFault("Decode")
    return Size((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)


def _vp8x_size(data: bytes) -> Size:
    if len(data) < _WEBP_HEAD_BYTES:
        raise ImageFault("Decode")
    return Size(*(int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27)))


_Reader: TypeAlias = Callable[[bytes], Size]
_WEBP_READERS: dict[bytes, _Reader] = {b"VP8 ": _vp8_size, b"VP8L": _vp8l_size, b"VP8X": _vp8x_size}
_READERS: dict[ImageFormat, _Reader] = {"png": _png_size, "jpeg": _jpeg_size, "gif": _gif_size, "webp": _webp_size}
