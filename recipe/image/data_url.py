"""The bytes inside a data URL."""

from __future__ import annotations

from binascii import a2b_base64
from urllib.parse import unquote_to_bytes

from recipe.image.error import ImageFault
from recipe.protocol.data_url import is_base64, parse_data_url

_MEDIA_TYPES = frozenset(("image/gif", "image/jpeg", "image/jpg", "image/png", "image/webp"))
_LINE_BREAKS = dict.fromkeys(map(ord, "\t\n\r"))
_WHITESPACE = b" \t\n\f\r"


def decode_data_url(url: str) -> bytes:
    """The image file that `url` holds, in base64 or percent-encoded.

    Raises ImageFault: InvalidDataUrl, or UnsupportedMediaType if the URL does not claim to be an image of a known type.
    """
    parsed = parse_data_url(url)
    if parsed is None:
        raise ImageFault("InvalidDataUrl")
    if parsed.media_type not in _MEDIA_TYPES:
        raise ImageFault("UnsupportedMediaType")
    body = unquote_to_bytes(parsed.body.translate(_LINE_BREAKS))
    return _base64_bytes(body) if parsed.is_base64 else body


def _base64_bytes(text: bytes) -> bytes:
    if not is_base64(text):
        raise ImageFault("InvalidDataUrl")
    digits = text.translate(None, _WHITESPACE).rstrip(b"=")
    return a2b_base64(digits + b"=" * (-len(digits) % 4))
