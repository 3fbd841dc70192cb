"""Small image files for the tests, made on the spot."""

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np

GOLDEN_IMAGES = Path(__file__).parents[2] / "oracle" / "images"


def golden(name: str) -> bytes:
    return (GOLDEN_IMAGES / name).read_bytes()


def picture(width: int, height: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth coloured noise, [height, width, channels]."""
    rough = np.random.default_rng(seed).integers(0, 256, (8, 8, channels), dtype=np.uint8)
    return cv2.resize(rough, (width, height), interpolation=cv2.INTER_CUBIC)


def encoded(pixels: np.ndarray, suffix: str = ".png") -> bytes:
    return cv2.imencode(suffix, pixels)[1].tobytes()


def decoded(data: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is this large."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", zlib.compress(b"\0" * 64))
        + png_chunk(b"IEND", b"")
    )


PNG = encoded(picture(40, 30))
