"""Blocks that show something: text, images, documents. Documents are named, not read."""

from __future__ import annotations

import binascii
from typing import NamedTuple, TypeAlias

from recipe.argument import quoted
from recipe.conversation import DataUrlImageSource, ImageDetail, ImageSource, UrlImageSource
from recipe.errors import ConversionError
from recipe.protocol.content import UNSUPPORTED_IMAGE, Content
from recipe.protocol.messages.schema import DocumentBlock, ImageBlock, ImageOrigin, TextBlock

ShownBlock: TypeAlias = TextBlock | ImageBlock | DocumentBlock

DETAIL: ImageDetail = "high"  # this protocol has no way to ask for another
UNKNOWN_DOCUMENT = "unknown"


class Place(NamedTuple):
    """Where a block stands: `error` prefixes what is wrong with it, `path` is what its image source reports."""

    error: str
    path: str


def add_block(content: Content, block: ShownBlock, image_token: str | None, place: Place) -> None:
    """Append a block to `content`. Without an `image_token` the model takes no images, and none is looked at.

    ConversionError for an image that cannot be one.
    """
    if isinstance(block, TextBlock):
        content.add_text(block.text)
    elif isinstance(block, DocumentBlock):
        media_type = block.source.media_type
        content.add_text(f"[Unsupported document type: {UNKNOWN_DOCUMENT if media_type is None else media_type}]")
    elif image_token is None:
        content.add_text(UNSUPPORTED_IMAGE)
    else:
        content.add_image(image_source(block, place), image_token)


def refuse_file(block: ShownBlock, place: Place) -> None:
    """ConversionError for a block whose content is kept elsewhere."""
    if isinstance(block, ImageBlock) and block.source.kind == "file":
        raise _no_file(place)
    if isinstance(block, DocumentBlock) and block.source.file_id is not None:
        raise ConversionError(f"{place.error}: file_id is not supported. Pass the text of the document instead.")


def image_source(block: ImageBlock, place: Place) -> ImageSource:
    """The source of an image block; ConversionError for bad base64, a URL that is not http(s), or a file."""
    source = block.source
    if source.kind == "base64":
        return DataUrlImageSource.trusted(_data_url(source, place), DETAIL, place.path)
    if source.kind == "url":
        if source.url[:4].lower() != "http":
            raise ConversionError(f"{place.error}: invalid url: {quoted(source.url)}")
        return UrlImageSource.trusted(source.url, DETAIL, place.path)
    raise _no_file(place)


def _no_file(place: Place) -> ConversionError:
    return ConversionError(f"{place.error}: file_id is not supported. Pass the image as a base64 data url instead.")


def _data_url(source: ImageOrigin, place: Place) -> str:
    try:
        data = canonical_base64(source.data)
    except ValueError:
        raise ConversionError(f"{place.error}: base64 decode error") from None
    media_type = "image/jpeg" if source.media_type == "image/jpg" else source.media_type
    return f"data:{media_type};base64,{data}"


def canonical_base64(data: str) -> str:
    """Standard base64 with exactly the padding it needs. ValueError for anything else but a wrong amount of padding.

    Data that needs padding has to have some; how much does not matter.
    """
    digits = data.rstrip("=")
    padded = digits + "=" * (-len(digits) % 4)
    if len(padded) > len(digits) == len(data):
        raise ValueError("missing padding")
    binascii.a2b_base64(padded, strict_mode=True)
    tail = padded[-4:]
    if binascii.b2a_base64(binascii.a2b_base64(tail), newline=False).decode() != tail:
        raise ValueError("bits after the last byte")
    return padded
