"""The prompt encoding of any model that comes with a Hugging Face chat template.

The template renders the conversation to one string, in which its own special tokens are found again by their spelling.
So that nothing a user typed is found there, user text is broken up before (see `spelling_guard`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import nodes

from recipe.conversation import Conversation
from recipe.encoding.call_shape import IN_TEXT, PLAIN, CallShape, find_call_shape
from recipe.encoding.prompt_tokenizer import unpacked
from recipe.encoding.spelling_guard import Collector, Guard, Spellings, unused_chars
from recipe.encoding.template_environment import template_environment
from recipe.encoding.template_variables import template_variables
from recipe.encoding.tokenizer import Tokenizer
from recipe.errors import ConversionError
from recipe.message import SystemMessage, UserMessage
from recipe.prompt import Prompt, RenderedPrompt

_SHOWN_LENGTH = 300
_KNOWS_TOOLS = re.compile(r"\btool(s|_calls)\b")


class TemplateError(ConversionError):
    """The chat template refuses a conversation or cannot render it."""


class ChatTemplateEncoding:
    """Renders conversations with a chat template and encodes them.

    `special_tokens` gives spellings by the names that templates use (`bos_token`, `eos_token`); `extra` gives further
    variables. A template that knows neither tools nor calls is told of them in text if `tells_tools`. Raises ValueError
    for a template that is no valid Jinja.
    """

    def __init__(
        self,
        template: str,
        tokenizer: Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
        tells_tools: bool = False,
    ) -> None:
        try:
            environment = template_environment()
            tree = environment.parse(template)
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as problem:
            raise ValueError(f"the chat template is invalid in line {problem.lineno}: {problem.message}") from problem
        self._tells_tools = tells_tools and not _KNOWS_TOOLS.search(template)
        self._tokenizer = tokenizer
        self._variables = {**(special_tokens or {}), **(extra or {})}
        self._spellings = Spellings(tokenizer.added_spellings.values(), tokenizer.whole_word_spellings)
        self._constant_texts = {
            text for literal in _literals(tree) for text, is_special in self._spellings.split(literal) if not is_special
        }
        self._own_text = "\0".join([template, *tokenizer.added_spellings.values()])

    def render_conversation(self, conversation: Conversation) -> RenderedPrompt:
        """Return the prompt of a conversation, with its special ranges. Raises TemplateError."""
        continued = _continued_fields(conversation)
        guard: Collector | Guard
        guard = harmless = Collector()
        shape, takes_system = self._shape(conversation), self._takes_instructions(conversation)
        variables = template_variables(conversation, harmless, shape, takes_system=takes_system)
        end_mark = ""
        if continued or self._spellings.occur_in(harmless.texts):
            guard_char, end_mark = unused_chars([self._own_text, *harmless.texts], 2)
            guard = Guard(self._spellings, guard_char)
            variables = template_variables(conversation, guard, shape, takes_system=takes_system)
        try:
            rendered = self._render(conversation, variables, continued, end_mark)
        except Exception as problem:  # whatever the template's own code raises
            reason = guard.dropped(str(problem)) or type(problem).__name__
            raise TemplateError(f"the chat template refuses this conversation: {_shortened(reason)}") from problem
        prompt = Prompt()
        for text, is_special in self._spellings.split(rendered):
            if is_special:
                prompt.push_special(text)
            else:
                prompt.push_text(guard.dropped(text))
        return RenderedPrompt.trusted(prompt, ())

    def encode(self, conversation: Conversation) -> list[int]:
        """Return the token IDs of a conversation. Raises TemplateError."""
        return unpacked(self.encode_packed(conversation))

    def encode_packed(self, conversation: Conversation) -> bytes:
        """Return the same IDs as native 32-bit unsigned integers."""
        return self._tokenizer.prompt_tokenizer.encode_packed(self.render_conversation(conversation).parts)

    def constant_texts(self) -> set[str]:
        """The ordinary stretches between two special tokens that are written as such in the template."""
        return self._constant_texts

    @cached_property
    def call_shape(self) -> CallShape:
        """What the template wants of tool calls."""
        return find_call_shape(
            lambda conversation, shape: self._render(
                conversation, template_variables(conversation, Collector(), shape), (), ""
            )
        )

    @cached_property
    def takes_system(self) -> bool:
        """Whether the template shows a system message; many refuse it, or leave it out."""
        probes = SystemMessage("probed system"), UserMessage("probed user")
        try:
            rendered = self._render(Conversation(probes), template_variables(Conversation(probes), Collector()), (), "")
        except Exception:  # whatever the template's own code raises
            return False
        return all(probe.content in rendered for probe in probes)

    def _shape(self, conversation: Conversation) -> CallShape:
        if self._tells_tools:
            return IN_TEXT
        return self.call_shape if any(message.tool_calls for message in conversation.messages) else PLAIN

    def _takes_instructions(self, conversation: Conversation) -> bool:
        """Whether what we add to a conversation, if anything, may be a system message."""
        adds = conversation.response_format != "text" or (self._tells_tools and conversation.tools)
        return self.takes_system if adds else True

    def _render(
        self, conversation: Conversation, variables: dict[str, Any], continued: Sequence[str], end_mark: str
    ) -> str:
        """Run the template. An answer to be continued gets a mark behind its text, at which the rest is cut off."""
        messages = variables["messages"]
        for field in continued:
            messages[-1][field] += end_mark
        if not continued and messages and conversation.messages[-1].prefix:
            del messages[-1]
        everything = {**self._variables, **variables, "documents": None, "add_generation_prompt": not continued}
        rendered = self._template.render(everything)
        if not continued:
            return rendered
        kept, mark, _ = rendered.rpartition(end_mark)
        if not mark:
            raise jinja2.TemplateError("it does not show the message that is to be continued")
        return kept


def _literals(tree: nodes.Template) -> Iterator[str]:
    """The texts in a template, inside and outside of its expressions."""
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str):
            yield constant.value
    for data in tree.find_all(nodes.TemplateData):
        yield data.data


def _continued_fields(conversation: Conversation) -> tuple[str, ...]:
    """The fields of the last message whose text the model shall go on with; none for a new answer."""
    last = conversation.messages[-1] if conversation.messages else None
    if last is None or not last.prefix:
        return ()
    if last.content:
        return ("content",)
    return ("reasoning_content", "thinking") if last.reasoning_content else ()


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"
