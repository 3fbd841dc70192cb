"""Decoding, resizing and encoding with OpenCV. The only module that imports it.

Images are arrays of 8-bit values, [height, width, 3] in blue, green, red. Orientation tags are ignored, of an
animation the first frame is taken, transparent parts show a background that is almost white.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from recipe.image.error import ImageFault
from recipe.image.gif import first_frame
from recipe.image.image_format import ImageFormat
from recipe.image.resize import Size, contained

Pixels = NDArray[np.uint8]  # [height, width, 3]

WEBP_QUALITY = 90
_FRAME_GRAY = (127, 127, 127)
_BACKGROUND = 253
_BAND_ROWS = 256


def decode(data: bytes, image_format: ImageFormat) -> Pixels:
    """The pixels of an image file. Raises ImageFault if the file is damaged."""
    return _decode_gif(data) if image_format == "gif" else _decode(data, "EmptyImage")


def shrink(pixels: Pixels, size: Size) -> Pixels:
    """Scale down to exactly `size`, averaging."""
    return _resize(pixels, size, cv2.INTER_AREA)


def place(pixels: Pixels, frame: Size) -> Pixels:
    """Scale to fit into `frame` and centre on gray of that size."""
    size = contained(Size(pixels.shape[1], pixels.shape[0]), frame)
    scaled = _resize(pixels, size, cv2.INTER_CUBIC)
    left, top = round((frame.width - size.width) / 2), round((frame.height - size.height) / 2)
    right, bottom = frame.width - size.width - left, frame.height - size.height - top
    if not (left or top or right or bottom):
        return scaled
    framed = cv2.copyMakeBorder(scaled, top, bottom, left, right, cv2.BORDER_CONSTANT, value=_FRAME_GRAY)
    return framed.astype(np.uint8, copy=False)


def encode_webp(pixels: Pixels) -> bytes:
    """A lossy WebP file of `pixels`."""
    done, encoded = cv2.imencode(".webp", pixels, [cv2.IMWRITE_WEBP_QUALITY, WEBP_QUALITY])
    if not done:
        raise ImageFault("Encode", is_retryable=True)
    return bytes(encoded.data)


def _resize(pixels: Pixels, size: Size, method: int) -> Pixels:
    if pixels.shape[:2] == (size.height, size.width):
        return pixels
    return cv2.resize(pixels, size, interpolation=method).astype(np.uint8, copy=False)


def _decode(data: bytes, kind: str) -> Pixels:
    try:
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        decoded = None
    if decoded is None or not decoded.size:
        raise ImageFault(kind)
    return _opaque(decoded)


def _decode_gif(data: bytes) -> Pixels:
    frame = first_frame(data)
    screen = np.full((frame.screen.height, frame.screen.width, 3), _BACKGROUND, np.uint8)
    if frame.size.area:
        hole = screen[frame.top : frame.top + frame.size.height, frame.left : frame.left + frame.size.width]
        hole[:] = _decode(frame.file, "Decode")[: hole.shape[0], : hole.shape[1]]
    return screen


def _opaque(decoded: NDArray[Any]) -> Pixels:
    """Bring what OpenCV decodes (gray or colour, 8 or 16 bits, with or without alpha) to `Pixels`."""
    if decoded.dtype == np.uint16:
        decoded = decoded >> 8
    pixels = decoded.astype(np.uint8, copy=False)
    if pixels.ndim == 2:
        return cv2.cvtColor(pixels, cv2.COLOR_GRAY2BGR).astype(np.uint8, copy=False)
    if pixels.shape[2] == 2:
        pixels = np.dstack((pixels[..., [0, 0, 0]], pixels[..., 1]))
    return _blended(pixels) if pixels.shape[2] == 4 else pixels


def _blended(pixels: NDArray[np.uint8]) -> Pixels:
    """Blend [height, width, 4] over the background, some rows at a time to keep the wide intermediate small."""
    blended = np.empty((*pixels.shape[:2], 3), np.uint8)
    for row in range(0, len(pixels), _BAND_ROWS):
        band = pixels[row : row + _BAND_ROWS].astype(np.uint16)
        alpha = band[..., 3:]
        blended[row : row + _BAND_ROWS] = (band[..., :3] * alpha + _BACKGROUND * (255 - alpha) + 127) // 255
    return blended
