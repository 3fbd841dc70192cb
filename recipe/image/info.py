"""Preprocessed images, as an inference backend takes them."""

from __future__ import annotations

from collections.abc import Sequence

from recipe.argument import items
from recipe.image.number import byte_string, unsigned
from recipe.image.resize import image_tokens


class ImageInfo:
    """One preprocessed image: the encoded file, and its size in pixels. Immutable, compared by identity."""

    __slots__ = ("_data", "_height", "_width")

    def __init__(self, data: bytes, width: int, height: int) -> None:
        self._data = byte_string("data", data)
        self._width = unsigned("width", width)
        self._height = unsigned("height", height)

    @property
    def data(self) -> bytes:
        return self._data

    @property
    def width(self) -> int:
        return self._width

    @property
    def height(self) -> int:
        return self._height


class MultiModalData:
    """Images in the order of their placeholders in the prompt."""

    __slots__ = ("_images",)

    def __init__(self, images: Sequence[ImageInfo] | None = None) -> None:
        self._images = () if images is None else items("images", images, ImageInfo)

    @property
    def images(self) -> list[ImageInfo]:
        return list(self._images)

    def is_empty(self) -> bool:
        return not self._images

    def image_token_adjustment(self) -> int:
        """Tokens that the images occupy beyond the one placeholder of each. Raises CalcResizeError."""
        return sum(image_tokens(image.width, image.height) - 1 for image in self._images)
