"""How many images and bytes one request has used so far."""

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
