"""Data URLs (RFC 2397 as the URL standard reads it), looked at only as far as request validation needs."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

_BASE64_SUFFIX = re.compile(r"; *base64$", re.IGNORECASE)
_ENDS = "".join(map(chr, range(0x21)))  # control characters and space, ignored around a URL
_HEADER_SPACE = " \t\n\r"  # a form feed in the header is part of the media type
_BODY_SPACE = b" \t\n\f\r"
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_LINE_BREAKS = dict.fromkeys(map(ord, "\t\n\r"))  # dropped wherever they stand in a URL


class DataUrl(NamedTuple):
    """A data URL in parts: lower-case media type without parameters, body as written, and whether that is base64."""

    media_type: str
    body: str
    is_base64: bool

    def decodes(self) -> bool:
        """Whether the body stands for bytes; percent-encoded text always does."""
        return not self.is_base64 or is_base64(unquote_to_bytes(self.body))


def parse_data_url(url: str) -> DataUrl | None:
    """The parts of `url`, None if it is no data URL."""
    header, comma, body = url.strip(_ENDS).partition(",")
    header = header.translate(_LINE_BREAKS)
    if not comma or "#" in header or header[:5].lower() != "data:":
        return None
    mime = header[5:].strip(_HEADER_SPACE)
    plain = _BASE64_SUFFIX.sub("", mime)
    media_type = plain.partition(";")[0].rstrip(_HEADER_SPACE).lower()
    return DataUrl(media_type, body.partition("#")[0], plain != mime)


def is_base64(text: bytes) -> bool:
    """Whether `text` is base64 of the standard alphabet; white space and missing padding are forgiven."""
    text = text.translate(None, _BODY_SPACE)
    if len(text) % 4 == 0:
        text = text[:-2] + text[-2:].rstrip(b"=")
    return len(text) % 4 != 1 and not text.translate(None, _ALPHABET)
