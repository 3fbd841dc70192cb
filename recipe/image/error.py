"""What goes wrong with images, and what HTTP makes of it.

The stages raise `ImageFault`, which knows the reason but not which image of the request it is about; the resolver adds
the place and raises `ImageError`. No message ever holds the data of an image.
"""

from __future__ import annotations

UNSUPPORTED_IMAGE = (
    "You have uploaded an unsupported image. Please make sure your image is valid "
    "and has one of the following formats: webp, png, jpeg, and gif."
)


MIB = 1024 * 1024


class ImageError(Exception):
    """Images could not be fetched, decoded or accepted. `str(error)` is the message for the client.

    `kind` names the reason, such as "Fetch" or "Decode"; `is_retryable` says whether the same request may work later.
    """

    kind: str
    is_retryable: bool

    @classmethod
    def of(cls, kind: str, message: str, is_retryable: bool = False) -> ImageError:
        """An error with its classification."""
        error = cls(message)
        error.kind, error.is_retryable = kind, is_retryable
        return error


class CalcResizeError(ValueError):
    """No size with an acceptable number of image tokens was found."""


class ImageFault(Exception):
    """Why one image cannot be used, before its place in the request is known."""

    def __init__(self, kind: str, text: str = UNSUPPORTED_IMAGE, is_retryable: bool = False) -> None:
        super().__init__(kind, text, is_retryable)
        self.kind, self.text, self.is_retryable = kind, text, is_retryable

    def at(self, path: str = "", index: int = 0) -> ImageError:
        """This fault as the error of image number `index` among those of the request location `path`."""
        return ImageError.of(self.kind, f"{prefix(path, '.')}image[{index}]: {self.text}", self.is_retryable)


def too_large(max_bytes: int) -> ImageFault:
    """The fault of an image file over `max_bytes`."""
    return ImageFault("ImageTooLarge", f"image file size exceeds limit {max_bytes // MIB} MB")


def prefix(path: str, separator: str = ": ") -> str:
    """Return `path` as the start of a message; nothing when there is no path."""
    return path + separator if path else ""


def image_error_status(error: ImageError | CalcResizeError) -> int:
    """HTTP status of an image error: 400 if the client has to change something, 500 if trying again may help."""
    return 500 if isinstance(error, CalcResizeError) or error.is_retryable else 400
