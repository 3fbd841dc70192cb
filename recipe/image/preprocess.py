"""From the bytes of an image file to the WebP file a model takes.

`load` is what worker processes run: its arguments and its outcome can be pickled, and it never raises for a bad image.
OpenCV is loaded with the first image; without it every image is refused with a hint.
"""

from __future__ import annotations

from dataclasses import dataclass

from recipe.argument import choice
from recipe.image.data_url import decode_data_url
from recipe.image.error import ImageFault, too_large
from recipe.image.image_format import check_header
from recipe.image.info import ImageInfo
from recipe.image.number import byte_string, unsigned
from recipe.image.resize import Size, bounded, output_size
from recipe.image_source import DETAILS, ImageDetail

MAX_DIMENSION_PX = 8192
LOW_DETAIL_PX = 512
_NO_OPENCV = "images need the optional dependency opencv-python-headless; install this package with the extra [images]"


class PreprocessOptions:
    """How to preprocess one image. A file with a side over `max_dimension_px` is refused; with detail "low" an image is
    first brought down to `low_detail_max_dimension_px`, the other details are alike."""

    __slots__ = ("_detail", "_low_detail_max_dimension_px", "_max_dimension_px")

    def __init__(self, detail: ImageDetail, max_dimension_px: int, low_detail_max_dimension_px: int) -> None:
        self._max_dimension_px = unsigned("max_dimension_px", max_dimension_px)
        self._low_detail_max_dimension_px = unsigned("low_detail_max_dimension_px", low_detail_max_dimension_px)
        self._detail: ImageDetail = choice("detail", detail, DETAILS)

    @property
    def detail(self) -> ImageDetail:
        return self._detail

    @property
    def max_dimension_px(self) -> int:
        return self._max_dimension_px

    @property
    def low_detail_max_dimension_px(self) -> int:
        return self._low_detail_max_dimension_px


class OpenCvImagePreprocessor:
    """Decodes, resizes and encodes images with OpenCV."""

    __slots__ = ()

    def preprocess(self, data: bytes, options: PreprocessOptions) -> ImageInfo:
        """Return the image file `data` as WebP in the size the model takes. Raises ImageError."""
        if not isinstance(options, PreprocessOptions):
            raise TypeError(
                f"argument 'options': '{type(options).__name__}' object cannot be cast as 'PreprocessOptions'"
            )
        try:
            return preprocess(byte_string("data", data), options)
        except ImageFault as fault:
            raise fault.at() from None


def preprocess(data: bytes, options: PreprocessOptions) -> ImageInfo:
    """Like `OpenCvImagePreprocessor.preprocess`, raising ImageFault."""
    image_format = check_header(data, options.max_dimension_px)
    try:
        from recipe.image import pixels as px
    except ImportError:
        raise ImageFault("Unavailable", _NO_OPENCV) from None
    image = px.decode(data, image_format)
    size = Size(image.shape[1], image.shape[0])
    if options.detail == "low":
        size = bounded(size, options.low_detail_max_dimension_px)
        image = px.shrink(image, size)
    frame = output_size(size)
    return ImageInfo(px.encode_webp(px.place(image, frame)), *frame)


@dataclass(slots=True)
class LoadOutcome:
    """What became of one image file: `info`, or `fault`. `is_loaded` is False if the file itself could not be had.

    `byte_size` is the size of the file, 0 if it could not be had.
    """

    byte_size: int = 0
    is_loaded: bool = False
    info: ImageInfo | None = None
    fault: ImageFault | None = None


def load(source: bytes | str, options: PreprocessOptions, max_bytes: int) -> LoadOutcome:
    """Take an image file, given as bytes or inside a data URL, and preprocess it unless it is over `max_bytes`."""
    outcome = LoadOutcome()
    try:
        data = decode_data_url(source) if isinstance(source, str) else source
        if not data:
            raise ImageFault("EmptyImage")
        if len(data) > max_bytes:
            raise too_large(max_bytes)
        outcome.byte_size, outcome.is_loaded = len(data), True
        outcome.info = preprocess(data, options)
    except ImageFault as fault:
        outcome.fault = fault.with_traceback(None)
    return outcome
