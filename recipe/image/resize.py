"""The size an image gets before the model sees it, and how many tokens it then takes.

Pure arithmetic. A patch is 14 pixels; three by three patches make a token, every row of tokens ends with one token
more, and the image with two: a grid of R x C cells takes R * (C + 1) + 2 tokens. `fit` searches a size whose sides are
whole patches, with at least MIN_AREA_PX pixels and at most MAX_TOKENS tokens: too small grows, too large shrinks,
repeated until neither applies. Sides are cut to whole pixels between steps, so every rounding below is part of the
result.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from recipe.image.error import CalcResizeError

PATCH_PX = 14
CELL_PX = 3 * PATCH_PX
MIN_AREA_PX = 544 * 544
MAX_TOKENS = 1024
MAX_GRID = MAX_TOKENS - 2  # R * (C + 1) at most
MAX_WEBP_PX = 16383 // PATCH_PX * PATCH_PX  # the longest side in whole patches that a WebP file can have
_MAX_STEPS = 32


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int

    @property
    def area(self) -> int:
        return self.width * self.height

    def scaled(self, scale: float) -> Size:
        return Size(int(self.width * scale), int(self.height * scale))

    def in_patches(self) -> Size:
        """Both sides rounded up to whole patches."""
        return Size(_round_up(self.width, PATCH_PX), _round_up(self.height, PATCH_PX))


def grid_tokens(size: Size) -> int:
    """Tokens of an image of exactly this size."""
    rows, columns = -(-size.height // CELL_PX), -(-size.width // CELL_PX)
    return rows * (columns + 1) + 2


def image_tokens(width: int, height: int) -> int:
    """Tokens of an image of `width` x `height` pixels after fitting. Raises CalcResizeError."""
    return grid_tokens(fit(Size(width, height)))


def fit(size: Size) -> Size:
    """The size in whole patches that an image of `size` is brought to. Raises CalcResizeError."""
    if not size.area:
        return size.in_patches() if grid_tokens(size) <= MAX_TOKENS else _thin(size.height > size.width)
    if size.area < MIN_AREA_PX:
        size = size.scaled(sqrt(MIN_AREA_PX / size.area))
    for _ in range(_MAX_STEPS):
        patches = size.in_patches()
        if grid_tokens(patches) > MAX_TOKENS:
            size = _shrunk(size)
        elif patches.area < MIN_AREA_PX:
            size = patches.scaled(sqrt(MIN_AREA_PX / patches.area))
        if size.in_patches() == patches:
            return patches
    raise CalcResizeError(f"no image size within {MAX_TOKENS} tokens was found")


def output_size(size: Size) -> Size:
    """`fit`, within what a WebP file can hold: a longer side is cut, the other follows down to the minimal area."""
    fitted = fit(size)
    longest = max(fitted)
    if longest <= MAX_WEBP_PX:
        return fitted
    floor_px = -(-MIN_AREA_PX // MAX_WEBP_PX)
    shorter = max(-(-min(fitted) * 16383 // longest), floor_px)
    side = _round_up(shorter, PATCH_PX)
    return Size(MAX_WEBP_PX, side) if fitted.width > fitted.height else Size(side, MAX_WEBP_PX)


def bounded(size: Size, longest_px: int) -> Size:
    """`size` with its aspect ratio, shrunk until no side is longer than `longest_px`; no side becomes zero."""
    longest = max(size)
    if longest <= longest_px:
        return size
    scale = longest_px / longest
    return Size(max(1, int(size.width * scale + 0.5)), max(1, int(size.height * scale + 0.5)))


def contained(size: Size, frame: Size) -> Size:
    """The largest size of the same aspect ratio inside `frame`."""
    ratio, frame_ratio = size.width / size.height, frame.width / frame.height
    if ratio > frame_ratio:
        return Size(frame.width, max(1, round(size.height / size.width * frame.width)))
    if ratio < frame_ratio:
        return Size(max(1, round(ratio * frame.height)), frame.height)
    return frame


def _shrunk(size: Size) -> Size:
    """`size` scaled down to the largest grid of its aspect ratio, cut to whole patches."""
    ratio = size.height / size.width
    columns = sqrt(0.25 + MAX_GRID / ratio) - 0.5  # solves columns * ratio * (columns + 1) = MAX_GRID
    rows = columns * ratio
    if columns < 1 or rows < 1:
        return _thin(columns < 1)
    scale = min(int(columns) * CELL_PX / size.width, int(rows) * CELL_PX / size.height)
    width, height = size.scaled(scale)
    return Size(width // PATCH_PX * PATCH_PX, height // PATCH_PX * PATCH_PX)


def _thin(tall: bool) -> Size:
    """The longest strip that is one cell wide, or high."""
    return Size(CELL_PX, MAX_GRID // 2 * CELL_PX) if tall else Size((MAX_GRID - 1) * CELL_PX, CELL_PX)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
