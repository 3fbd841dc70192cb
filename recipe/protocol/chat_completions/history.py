"""The messages of a Chat Completions request as conversation messages, in request order.

One pass, message by message, so that the first broken rule in message order is the one reported. The calls of an
assistant message stay open until as many tool messages have answered them; nothing else may come in between.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from recipe.conversation import (
    AssistantMessage,
    ImageSource,
    LatestReminderMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from recipe.errors import ConversionError
from recipe.protocol.chat_completions.schema import (
    AssistantItem,
    Block,
    BlockContent,
    DeveloperItem,
    ExtendedAssistantItem,
    FileBlock,
    FileFields,
    ImageUrl,
    ImageUrlBlock,
    MessageItem,
    SystemItem,
    TextBlock,
    ToolCallItem,
    ToolItem,
    UserItem,
)
from recipe.protocol.content import (
    IMAGE_MEDIA_TYPES,
    SUPPORTED_FORMATS,
    UNSUPPORTED_IMAGE,
    Content,
    image_token,
    image_url_source,
)
from recipe.protocol.data_url import parse_data_url
from recipe.request import ConversionOptions, ModelVersion

_ANSWERS_WANTED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'"
)

_BILLING_HEADER = "x-anthropic-billing-header"
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


class History:
    """Converts the messages of one request to a model of `version`."""

    __slots__ = ("_answered", "_extensions", "_open", "_options", "_version")

    def __init__(self, options: ConversionOptions, version: ModelVersion) -> None:
        self._extensions = options.extensions
        self._options = options
        self._version = version
        self._open: set[str] = set()  # calls without an answer
        self._answered: set[str] = set()  # calls of the same message with one

    def convert(self, items: Sequence[MessageItem]) -> list[Message]:
        """The conversation; assistant messages keep the reasoning they came with. ConversionError at a broken rule."""
        if not items:
            raise ConversionError("Empty input messages")
        messages: list[Message] = []
        for index, item in enumerate(items):
            if self._open and not isinstance(item, ToolItem):
                raise _too_few_answers()
            message = self._message(index, item)
            if message.content or not isinstance(item, SystemItem):  # an empty system message says nothing
                messages.append(message)
        if self._open:
            raise _too_few_answers()
        return messages

    def _message(self, index: int, item: MessageItem) -> Message:
        if isinstance(item, UserItem):
            return UserMessage.trusted(*self._content(index, item.content))
        if isinstance(item, AssistantItem):
            return self._assistant(index, item)
        if isinstance(item, ToolItem):
            self._answer(index, item.tool_call_id)
            text, sources, ranges = self._content(index, item.content)
            return ToolMessage.trusted(text, item.tool_call_id, sources, ranges)
        if isinstance(item, DeveloperItem) and not self._extensions.developer_role:
            raise ConversionError(f"messages[{index}]: the role developer is not supported. Use system.")
        if isinstance(item, SystemItem):
            return self._system(index, item)
        return LatestReminderMessage.trusted(item.content)

    def _system(self, index: int, item: SystemItem) -> SystemMessage:
        """The message, without a first line that only serves the billing of some clients."""
        text, sources, ranges = self._content(index, item.content)
        if text.startswith(_BILLING_HEADER):
            rest = text.partition("\n")[2].lstrip(_WHITE_SPACE)
            cut = len(text) - len(rest)
            text, ranges = rest, tuple((start - cut, end - cut) for start, end in ranges)
        return SystemMessage.trusted(text, sources, ranges)

    def _assistant(self, index: int, item: AssistantItem) -> AssistantMessage:
        content, *_ = self._content(
            index, item.content or "", refused_images="Image in assistant message is not supported"
        )
        reasoning = item.reasoning_content
        if isinstance(item, ExtendedAssistantItem):
            self._refuse_parts(index, item)
            reasoning = item.reasoning if reasoning is None else reasoning
        calls = None if item.tool_calls is None else self._calls(index, item.tool_calls)
        if item.content is None and calls is None and not self._extensions.null_content:
            raise ConversionError("Invalid assistant message: content or tool_calls must be set")
        return AssistantMessage.trusted(content, reasoning, calls, bool(item.prefix))

    def _refuse_parts(self, index: int, item: ExtendedAssistantItem) -> None:
        """ConversionError for a part of an earlier answer that the model would not get to see."""
        for name, part in (("audio", item.audio), ("function_call", item.function_call)):
            if part is not None and self._extensions.refusals:
                raise ConversionError(f"messages[{index}].{name} is not supported")

    def _calls(self, index: int, items: list[ToolCallItem]) -> list[ToolCall]:
        """The calls, which are open from here on."""
        if not items:
            raise ConversionError(
                f"Invalid 'messages[{index}].tool_calls': empty array. "
                "Expected an array with minimum length 1, but got an empty array instead."
            )
        self._answered = set()
        for item in items:
            if item.id in self._open:
                raise _duplicate(item.id, index)
            self._open.add(item.id)
        return [ToolCall.trusted(item.id, item.function.name, item.function.arguments) for item in items]

    def _answer(self, index: int, call_id: str) -> None:
        """Close the call that a tool message answers."""
        if not self._open:
            raise ConversionError(
                "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            )
        if call_id in self._answered:
            raise _duplicate(call_id, index)
        if call_id not in self._open:
            raise ConversionError(
                f"{_ANSWERS_WANTED}, The following tool_call_ids did not have response messages: {call_id}"
            )
        self._open.remove(call_id)
        self._answered.add(call_id)

    def _content(
        self, index: int, blocks: BlockContent, refused_images: str | None = None
    ) -> tuple[str, Sequence[ImageSource], tuple[tuple[int, int], ...]]:
        """Text, image sources and the places of their placeholders; `refused_images` is the error of any image."""
        if isinstance(blocks, str):
            return blocks, (), ()
        content = Content()
        path = f".messages[{index}]"
        token = image_token(self._options, self._version)
        if self._extensions.refusals:
            blocks = [_flat_file(block, path) if isinstance(block, FileBlock) else block for block in blocks]
            _refuse_file_ids(blocks, path)
        if token is not None:
            blocks = [_image_block(block, path) if isinstance(block, FileBlock) else block for block in blocks]
        for block in blocks:
            if isinstance(block, TextBlock):
                content.add_text(block.text)
            elif token is None or isinstance(block, FileBlock):
                content.add_text(UNSUPPORTED_IMAGE)
            elif refused_images is not None:
                raise ConversionError(refused_images)
            else:
                image = block.image_url
                content.add_image(image_url_source(image.url, image.detail, path), token)
        return content.text, content.image_sources, content.image_ranges


def _image_block(block: FileBlock, path: str) -> ImageUrlBlock:
    return ImageUrlBlock(ImageUrl(_file_url(block, path)))


def _flat_file(block: FileBlock, path: str) -> FileBlock:
    """The block with the fields that it keeps in an object of their own."""
    if block.file is None:
        return block
    try:
        fields = msgspec.convert(block.file, FileFields)
    except msgspec.ValidationError as error:
        raise ConversionError(f"{path}: file: {error}") from None
    return FileBlock(fields.file_data, fields.file_id, fields.filename)


def _refuse_file_ids(blocks: Sequence[Block], path: str) -> None:
    """ConversionError for a file that is kept elsewhere, also where the model takes no images."""
    for block in blocks:
        if isinstance(block, FileBlock) and block.file_id is not None:
            raise ConversionError(f"{path}: {_file_id_problem(block)}")


def _file_url(block: FileBlock, path: str) -> str:
    """The data URL of a file that is an image."""
    if block.file_id is not None:
        raise ConversionError(f"{path}: {_file_id_problem(block)}")
    if block.file_data is None:
        raise ConversionError(f"{path}: file must have a file_id or file_data")
    data_url = parse_data_url(block.file_data)
    if data_url is not None and data_url.media_type not in IMAGE_MEDIA_TYPES:
        raise ConversionError(
            f"{path}: You have uploaded an unsupported file. "
            f"Please make sure your file is valid and has {SUPPORTED_FORMATS}"
        )
    if data_url is None or not data_url.decodes():
        raise ConversionError(f"{path}: file_data is not a valid base64 data url")
    return block.file_data


def _file_id_problem(block: FileBlock) -> str:
    if block.file_data is not None:
        return "file cannot have both file_id and file_data"
    if block.filename is not None:
        return "file cannot have filename when file_id is present"
    return "file_id is not supported. Pass the image as a base64 data url instead."


def _too_few_answers() -> ConversionError:
    return ConversionError(f"{_ANSWERS_WANTED}. (insufficient tool messages following tool_calls message)")


def _duplicate(call_id: str, index: int) -> ConversionError:
    return ConversionError(f"Duplicate value for 'tool_call_id' of {call_id} in message[{index}]")
