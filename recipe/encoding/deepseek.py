"""What the two DeepSeek encodings have in common: markup in given spellings, and the way from a prompt to token IDs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from recipe.conversation import Conversation, ReasoningEffort
from recipe.encoding.dsml import Dialect, Dsml
from recipe.encoding.grounding import Grounding
from recipe.encoding.prompt_tokenizer import unpacked
from recipe.encoding.tokenizer import Tokenizer
from recipe.encoding.tool_block import ToolBlock
from recipe.image_source import ImageSource
from recipe.message import Message
from recipe.prompt import Prompt, RenderedPrompt, SpecialToken, SpecialTokens
from recipe.tool import ToolCall

SCHEMA_INTRODUCTION = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"


class Markup:
    """The special tokens of an encoding in their spellings, and the writers that use them."""

    __slots__ = (
        "assistant",
        "bos",
        "dialect",
        "dsml",
        "eos",
        "grounding",
        "latest_reminder",
        "system",
        "thinking_end",
        "thinking_start",
        "tool_block",
        "user",
    )

    def __init__(self, dialect: Dialect, tokens: SpecialTokens) -> None:
        self.dialect = dialect
        self.bos = tokens.token(SpecialToken.Bos)
        self.eos = tokens.token(SpecialToken.Eos)
        self.thinking_start = tokens.token(SpecialToken.ThinkingStart)
        self.thinking_end = tokens.token(SpecialToken.ThinkingEnd)
        self.system = tokens.token(SpecialToken.System)
        self.user = tokens.token(SpecialToken.User)
        self.assistant = tokens.token(SpecialToken.Assistant)
        self.latest_reminder = tokens.token(SpecialToken.LatestReminder)
        self.dsml = Dsml(dialect, tokens.token(SpecialToken.Dsml))
        self.tool_block = ToolBlock(dialect, tokens)
        self.grounding = Grounding(tokens)


class Rendering:
    """One conversation on its way into a prompt."""

    __slots__ = ("conversation", "image_sources", "last_message", "markup", "prompt", "shows_tools")

    def __init__(self, conversation: Conversation, markup: Markup) -> None:
        self.conversation = conversation
        self.last_message: Message | None = None
        self.markup = markup
        self.prompt = Prompt()
        self.image_sources: list[ImageSource] = []
        self.shows_tools = conversation.tool_choice != "none" and bool(conversation.tools)

    def push_content(self, message: Message) -> None:
        """Write the content of a message that is no assistant's, with the placeholders of its images."""
        sources = message.image_sources
        if sources:
            self.image_sources += sources
            self.prompt.push_marked(message.content, message.image_ranges)
        else:
            self.prompt.push_text(message.content)

    def push_result(self, message: Message) -> None:
        """Write the result of a tool call."""
        self.prompt.push_text("<tool_result>")
        self.push_content(message)
        self.prompt.push_text("</tool_result>")

    def push_reasoning(self, message: Message) -> None:
        """Open the reasoning of an assistant message and write it."""
        self.prompt.push_special(self.markup.thinking_start)
        self.markup.grounding.push(self.prompt, message.reasoning_content or "")

    def push_answer(self, message: Message, calls: Sequence[ToolCall] | None) -> None:
        """Write what an assistant message says, and the block of its calls if it has one."""
        self.markup.grounding.push(self.prompt, message.content)
        if calls is not None:
            self.markup.dsml.push_calls(self.prompt, calls)

    def push_turn_to_answer(self) -> None:
        """Hand over to the model: open an answer, unless the last message is one, and a required block of calls."""
        markup = self.markup
        if self.last_message is None or not self.last_message.prefix:
            self.prompt.push_special(markup.assistant)
            self.prompt.push_special(markup.thinking_start if self.conversation.thinking_mode else markup.thinking_end)
        if self.shows_tools and self.conversation.tool_choice == "required":
            markup.dsml.push_open(self.prompt)


class DeepseekEncoding(ABC):
    """A prompt encoding. It renders conversations and, with a tokenizer attached, encodes them."""

    __slots__ = ("_markup", "_tokenizer")
    dialect: ClassVar[Dialect]
    efforts: ClassVar[Mapping[ReasoningEffort | None, str]]
    """What stands before everything else in thinking mode."""

    def __init__(self) -> None:
        self._markup = Markup(self.dialect, SpecialTokens())
        self._tokenizer: Tokenizer | None = None

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        """Return an encoding that uses `tokenizer` for `encode`."""
        if not isinstance(tokenizer, Tokenizer):
            raise TypeError(f"argument 'tokenizer': '{type(tokenizer).__name__}' object is no Tokenizer")
        return self._with(self._markup, tokenizer)

    def with_special_tokens(self, special_tokens: SpecialTokens) -> Self:
        """Return an encoding that renders with the spellings of `special_tokens`."""
        if not isinstance(special_tokens, SpecialTokens):
            raise TypeError(f"argument 'special_tokens': '{type(special_tokens).__name__}' object is no SpecialTokens")
        return self._with(Markup(self.dialect, special_tokens), self._tokenizer)

    def render_conversation(self, conversation: Conversation) -> RenderedPrompt:
        """Return the prompt of a conversation, with its special ranges and images."""
        if not isinstance(conversation, Conversation):
            raise TypeError(f"argument 'conversation': '{type(conversation).__name__}' object is no Conversation")
        rendering = Rendering(conversation, self._markup)
        messages = self._begin(rendering)
        previous = None
        rendering.last_message = messages[-1] if messages else None
        for message in messages:
            self._write(rendering, message, previous)
            previous = message
        rendering.push_turn_to_answer()
        return RenderedPrompt.trusted(rendering.prompt, rendering.image_sources)

    def encode(self, conversation: Conversation) -> list[int]:
        """Return the token IDs of a conversation.

        Raises RuntimeError without a tokenizer, or when it lacks a special token of the prompt.
        """
        return unpacked(self.encode_packed(conversation))

    def encode_packed(self, conversation: Conversation) -> bytes:
        """Return the same IDs as native 32-bit unsigned integers."""
        if not isinstance(conversation, Conversation):
            raise TypeError(f"argument 'conversation': '{type(conversation).__name__}' object is no Conversation")
        if self._tokenizer is None:
            raise RuntimeError("no tokenizer is attached to the encoding")
        return self._tokenizer.prompt_tokenizer.encode_packed(self.render_conversation(conversation).parts)

    def constant_texts(self) -> set[str]:
        """The ordinary stretches that this encoding writes whatever the conversation."""
        efforts = set(self.efforts.values())
        return efforts | self._markup.dsml.constant_texts() | self._markup.tool_block.constant_texts()

    def _with(self, markup: Markup, tokenizer: Tokenizer | None) -> Self:
        encoding = type(self).__new__(type(self))
        encoding._markup, encoding._tokenizer = markup, tokenizer
        return encoding

    @abstractmethod
    def _begin(self, rendering: Rendering) -> list[Message]:
        """Write what comes before the messages, and return these in the order and form in which they are written."""

    @abstractmethod
    def _write(self, rendering: Rendering, message: Message, previous: Message | None) -> None:
        """Write one of them."""
