"""Content blocks of Responses messages and outputs as the text and images of one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from recipe.errors import ConversionError
from recipe.protocol.content import UNSUPPORTED_IMAGE, Content, image_token, image_url_source
from recipe.protocol.responses.schema import InputFile, InputImage, InputText, OutputText
from recipe.request import ConversionOptions, ModelVersion

UNSUPPORTED_DOCUMENT = "[Unsupported Document]"

Block: TypeAlias = InputText | OutputText | InputImage | InputFile
Blocks: TypeAlias = str | Sequence[Block]


class BlockReader:
    """Reads blocks for one request: a model that takes no images gets a note in their place, whatever they are."""

    __slots__ = ("_image_token", "_refuses_files")

    def __init__(self, options: ConversionOptions, version: ModelVersion) -> None:
        self._refuses_files = options.extensions.refusals
        self._image_token = image_token(options, version)

    def content(self, blocks: Blocks, item: str, field: str) -> Content:
        """The content of `blocks`, which are the `field` of the `item` such as `input[0]`.

        ConversionError for the first image that names no source, then for the first source that is no image URL.
        """
        content = Content()
        if isinstance(blocks, str):
            content.add_text(blocks)
            return content
        self._check_files(blocks, f"{item}.{field}")
        self._check_images(blocks, f"{item}.{field}")
        for block in blocks:
            self._add(content, block, item)
        return content

    def assistant_text(self, blocks: Blocks, item: str) -> str:
        """The text of an assistant message; ConversionError for an image."""
        if isinstance(blocks, str):
            return blocks
        if self._image_token is not None and any(isinstance(block, InputImage) for block in blocks):
            self._check_images(blocks, f"{item}.content")
            raise ConversionError(f"{item}: Image in assistant message is unsupported")
        return self.content(blocks, item, "content").text

    def _check_files(self, blocks: Sequence[Block], path: str) -> None:
        if not self._refuses_files:
            return
        for index, block in enumerate(blocks):
            if isinstance(block, InputFile) and block.file_id is not None:
                raise ConversionError(f"{path}[{index}]: file_id is not supported. Pass the text of the file instead.")

    def _check_images(self, blocks: Sequence[Block], path: str) -> None:
        for index, block in enumerate(blocks):
            if not isinstance(block, InputImage):
                continue
            if self._image_token is not None or (self._refuses_files and block.file_id is not None):
                _check_source(block, f"{path}[{index}]")

    def _add(self, content: Content, block: Block, item: str) -> None:
        if isinstance(block, InputImage):
            if self._image_token is None:
                content.add_text(UNSUPPORTED_IMAGE)
            else:
                source = image_url_source(block.image_url or "", block.detail, item)
                content.add_image(source, self._image_token)
        elif isinstance(block, InputFile):
            content.add_text(UNSUPPORTED_DOCUMENT)
        else:
            content.add_text(block.text)


def _check_source(image: InputImage, path: str) -> None:
    if not image.image_url and image.file_id is None:
        raise ConversionError(f"{path}: input_image must have image_url or file_id")
    if image.image_url and image.file_id is not None:
        raise ConversionError(f"{path}: input_image cannot have both image_url and file_id")
    if image.file_id is not None:
        raise ConversionError(f"{path}: file_id is not supported. Pass the image as a base64 data url instead.")
