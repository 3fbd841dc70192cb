"""How many images and bytes one request has used, and how many it may still fetch."""

from __future__ import annotations


class ImageQuota:
    """Images and source bytes of the completed resolve calls of one request.

    Pass the same quota to every call of a request. A call records its images at its end, so a failed one adds nothing.
    """

    __slots__ = ("_byte_size", "_image_count")

    def __init__(self) -> None:
        self._image_count = 0
        self._byte_size = 0

    def image_count(self) -> int:
        return self._image_count

    def byte_size(self) -> int:
        """Bytes of the image files, before preprocessing."""
        return self._byte_size

    def record(self, image_count: int, byte_size: int) -> None:
        """Add the images of a completed call."""
        self._image_count += image_count
        self._byte_size += byte_size


class ByteBudget:
    """Bytes that the downloads of one request may still bring, together."""

    __slots__ = ("_left",)

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, count: int) -> bool:
        """Use `count` bytes; False once more was taken than there was."""
        self._left -= count
        return self._left >= 0
