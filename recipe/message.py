"""The messages of a conversation.

An image placeholder is a *place* in the content, not a spelling: messages keep the ranges (`image_ranges`, code
points), so that a spelling that somebody typed stays ordinary text.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self, TypeAlias

from recipe.argument import flag, items, option, quoted, text
from recipe.image_source import ImageSource
from recipe.prompt import SpecialToken
from recipe.tool import ToolCall, ToolDefinition

Role: TypeAlias = Literal["system", "user", "assistant", "tool", "latest_reminder"]
Range: TypeAlias = tuple[int, int]


class Message:
    """What all messages share: a role and a content, and fixed values for what other roles have."""

    __slots__ = ("_content",)
    role: ClassVar[Role]
    _content: str

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise TypeError(f"cannot create '{type(self).__name__}' instances")

    @property
    def content(self) -> str:
        return self._content

    @property
    def reasoning_content(self) -> str | None:
        return None

    @property
    def tool_calls(self) -> list[ToolCall] | None:
        return None

    @property
    def tool_call_id(self) -> str | None:
        return None

    @property
    def image_sources(self) -> list[ImageSource]:
        return []

    @property
    def image_ranges(self) -> tuple[Range, ...]:
        """Half-open code point ranges of `content` that hold the placeholders of the images, ascending."""
        return ()

    @property
    def prefix(self) -> bool:
        """Whether an assistant message is to be continued instead of closed."""
        return False


class _ImageMessage(Message):
    """A message whose content may hold images.

    The first occurrences of `image_token` in `content`, as many as there are sources, become placeholders; further
    ones are ordinary text. Too few occurrences are no error: the message keeps all its sources.
    """

    __slots__ = ("_image_ranges", "_image_sources")
    _image_sources: Sequence[ImageSource]
    _image_ranges: tuple[Range, ...]

    def _fill(self, content: str, image_sources: Sequence[ImageSource] | None, image_token: str | None) -> None:
        self._content = text("content", content)
        self._image_sources = () if image_sources is None else items("image_sources", image_sources, ImageSource)
        token = SpecialToken.Image.default_str() if image_token is None else text("image_token", image_token)
        if not token:
            raise ValueError("image_token must not be empty")
        self._image_ranges = _occurrences(content, token, len(self._image_sources))

    @property
    def image_sources(self) -> list[ImageSource]:
        return list(self._image_sources)

    @property
    def image_ranges(self) -> tuple[Range, ...]:
        return self._image_ranges


class SystemMessage(_ImageMessage):
    """A system message; `tools` are tools that become available at this point of the conversation."""

    __slots__ = ("_tools",)
    role = "system"
    _tools: Sequence[ToolDefinition] | None

    def __init__(
        self,
        content: str,
        image_sources: Sequence[ImageSource] | None = None,
        tools: Sequence[ToolDefinition] | None = None,
        *,
        image_token: str | None = None,
    ) -> None:
        self._fill(content, image_sources, image_token)
        self._tools = None if tools is None else items("tools", tools, ToolDefinition)

    @classmethod
    def trusted(
        cls,
        content: str,
        image_sources: Sequence[ImageSource] = (),
        image_ranges: tuple[Range, ...] = (),
        tools: Sequence[ToolDefinition] | None = None,
    ) -> Self:
        self = cls.__new__(cls)
        self._content, self._image_sources, self._image_ranges = content, image_sources, image_ranges
        self._tools = tools
        return self

    @property
    def tools(self) -> list[ToolDefinition] | None:
        return None if self._tools is None else list(self._tools)

    def __repr__(self) -> str:
        return f"SystemMessage({quoted(self._content)})"


class UserMessage(_ImageMessage):
    """A user message."""

    __slots__ = ()
    role = "user"

    def __init__(
        self, content: str, image_sources: Sequence[ImageSource] | None = None, *, image_token: str | None = None
    ) -> None:
        self._fill(content, image_sources, image_token)

    @classmethod
    def trusted(
        cls, content: str, image_sources: Sequence[ImageSource] = (), image_ranges: tuple[Range, ...] = ()
    ) -> Self:
        self = cls.__new__(cls)
        self._content, self._image_sources, self._image_ranges = content, image_sources, image_ranges
        return self

    def joined(self, other: "UserMessage") -> "UserMessage":
        """Return one message of both, with an empty line between them."""
        offset = len(self._content) + 2
        moved = tuple((start + offset, end + offset) for start, end in other._image_ranges)
        content = f"{self._content}\n\n{other._content}"
        return UserMessage.trusted(content, self.image_sources + other.image_sources, self._image_ranges + moved)

    def __repr__(self) -> str:
        return f"UserMessage({quoted(self._content)}, image_sources={len(self._image_sources)})"


class AssistantMessage(Message):
    """An assistant message of the history, or, with `prefix`, the beginning of the answer."""

    __slots__ = ("_prefix", "_reasoning_content", "_tool_calls")
    role = "assistant"
    _tool_calls: Sequence[ToolCall] | None

    def __init__(
        self,
        content: str,
        reasoning_content: str | None = None,
        tool_calls: Sequence[ToolCall] | None = None,
        prefix: bool = False,
    ) -> None:
        self._content = text("content", content)
        self._reasoning_content = None if reasoning_content is None else text("reasoning_content", reasoning_content)
        self._tool_calls = None if tool_calls is None else items("tool_calls", tool_calls, ToolCall)
        self._prefix = flag("prefix", prefix)

    @classmethod
    def trusted(
        cls,
        content: str,
        reasoning_content: str | None = None,
        tool_calls: Sequence[ToolCall] | None = None,
        prefix: bool = False,
    ) -> Self:
        self = cls.__new__(cls)
        self._content, self._reasoning_content = content, reasoning_content
        self._tool_calls, self._prefix = tool_calls, prefix
        return self

    @property
    def reasoning_content(self) -> str | None:
        return self._reasoning_content

    @property
    def tool_calls(self) -> list[ToolCall] | None:
        return None if self._tool_calls is None else list(self._tool_calls)

    @property
    def prefix(self) -> bool:
        return self._prefix

    def __repr__(self) -> str:
        return (
            f"AssistantMessage({quoted(self._content)}, reasoning_content={self._reasoning_content is not None}, "
            f"tool_calls={len(self._tool_calls or ())}, prefix={self._prefix})"
        )


class ToolMessage(_ImageMessage):
    """The result of a tool call."""

    __slots__ = ("_tool_call_id",)
    role = "tool"

    def __init__(
        self,
        content: str,
        tool_call_id: str | None = None,
        image_sources: Sequence[ImageSource] | None = None,
        *,
        image_token: str | None = None,
    ) -> None:
        self._tool_call_id = None if tool_call_id is None else text("tool_call_id", tool_call_id)
        self._fill(content, image_sources, image_token)

    @classmethod
    def trusted(
        cls,
        content: str,
        tool_call_id: str | None = None,
        image_sources: Sequence[ImageSource] = (),
        image_ranges: tuple[Range, ...] = (),
    ) -> Self:
        self = cls.__new__(cls)
        self._content, self._image_sources, self._image_ranges = content, image_sources, image_ranges
        self._tool_call_id = tool_call_id
        return self

    @property
    def tool_call_id(self) -> str | None:
        return self._tool_call_id

    def __repr__(self) -> str:
        return (
            f"ToolMessage({quoted(self._content)}, tool_call_id={option(self._tool_call_id)}, "
            f"image_sources={len(self._image_sources)})"
        )


class LatestReminderMessage(Message):
    """A reminder with additional instructions."""

    __slots__ = ()
    role = "latest_reminder"

    def __init__(self, content: str) -> None:
        self._content = text("content", content)

    @classmethod
    def trusted(cls, content: str) -> Self:
        self = cls.__new__(cls)
        self._content = content
        return self

    def __repr__(self) -> str:
        return f"LatestReminderMessage({quoted(self._content)})"


def _occurrences(content: str, token: str, limit: int) -> tuple[Range, ...]:
    ranges: list[Range] = []
    start = content.find(token) if limit else -1
    while start >= 0 and len(ranges) < limit:
        ranges.append((start, start + len(token)))
        start = content.find(token, ranges[-1][1])
    return tuple(ranges)
