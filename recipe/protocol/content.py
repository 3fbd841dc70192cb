"""The content of one message, from blocks: texts joined by blank lines, with placeholders where images are."""

from __future__ import annotations

from recipe.conversation import DataUrlImageSource, ImageDetail, ImageSource, UrlImageSource
from recipe.errors import ConversionError
from recipe.prompt import SpecialToken
from recipe.protocol.data_url import parse_data_url
from recipe.request import ConversionOptions, ModelVersion

SEPARATOR = "\n\n"
UNSUPPORTED_IMAGE = "[Unsupported Image]"
IMAGE_MEDIA_TYPES = frozenset(("image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp"))
SUPPORTED_FORMATS = "one of the following formats: webp, png, jpeg, and gif."
UNSUPPORTED_IMAGE_FORMAT = (
    f"You have uploaded an unsupported image. Please make sure your image is valid and has {SUPPORTED_FORMATS}"
)


def image_token(options: ConversionOptions, version: ModelVersion) -> str | None:
    """The spelling of image placeholders, None for a model that takes no images."""
    return options.special_tokens.token(SpecialToken.Image) if version is ModelVersion.DeepseekV41Flash else None


class Content:
    """A content under construction.

    `image_ranges` are the half-open ranges of `text`, in code points, that stand for `image_sources`, in their order.
    """

    __slots__ = ("_length", "_parts", "image_ranges", "image_sources")

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0  # code points of the parts and the separators between them
        self.image_sources: tuple[ImageSource, ...] = ()
        self.image_ranges: tuple[tuple[int, int], ...] = ()

    def add_text(self, text: str) -> None:
        """Append a block of text."""
        if self._parts:
            self._length += len(SEPARATOR)
        self._parts.append(text)
        self._length += len(text)

    def add_image(self, source: ImageSource, token: str) -> None:
        """Append an image, shown as `token`."""
        self.add_text(token)
        self.image_sources += (source,)
        self.image_ranges += ((self._length - len(token), self._length),)

    @property
    def text(self) -> str:
        """The joined blocks."""
        return SEPARATOR.join(self._parts)


def image_url_source(url: str, detail: ImageDetail | None, path: str) -> ImageSource:
    """The source behind an http, https or base64 data URL; ConversionError, led by `path`, for any other."""
    if url[:4].lower() == "http":
        return UrlImageSource.trusted(url, detail or "high", path)
    data_url = parse_data_url(url) if "base64," in url else None
    if data_url is None:
        raise ConversionError(f"{path}: Unsupported image_url format")
    if data_url.media_type not in IMAGE_MEDIA_TYPES:
        raise ConversionError(f"{path}: {UNSUPPORTED_IMAGE_FORMAT}")
    if not data_url.decodes():
        raise ConversionError(f"{path}: Invalid base64 data")
    return DataUrlImageSource.trusted(url, detail or "high", path)
