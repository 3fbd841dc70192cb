"""Response formats, and what constrained decoding would have to enforce for a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypedDict

import msgspec

from recipe.conversation import ResponseFormat as ShownKind
from recipe.conversation import ToolChoice, ToolDefinition
from recipe.errors import ConversionError
from recipe.json_value import JsonValue
from recipe.protocol.json_schema import check_schema
from recipe.protocol.json_text import compact_json
from recipe.protocol.strict_schema import strict_response_schema
from recipe.request import OutputConstraint


class ShownFormat(TypedDict):
    """The arguments of a conversation that are about the format of its answer."""

    response_format: ShownKind
    response_schema: JsonValue
    response_regex: str | None


class ResponseFormat(msgspec.Struct, frozen=True):
    """The form of answer that a request asks for.

    `schema` and `strict` belong to json_schema, `regex` to regex; a choice has its strings as its `schema`. Choices and
    grammars constrain the output only; prompts do not show them.
    """

    kind: Literal["text", "json_object", "json_schema", "regex", "choice", "grammar"] = "text"
    schema: JsonValue = None
    strict: bool = False
    regex: str | None = None
    grammar: str | None = None

    def shown(self) -> ShownFormat:
        """What a conversation holds of the format."""
        if self.kind == "choice" or self.kind == "grammar":
            return ShownFormat(response_format="text", response_schema=None, response_regex=None)
        return ShownFormat(response_format=self.kind, response_schema=self.schema, response_regex=self.regex)


TEXT = ResponseFormat()


def check_json_word(texts: Iterable[str], message: str) -> None:
    """ConversionError with `message` unless one of the texts holds the word "json", in any ASCII case."""
    if not any("json" in text or "json" in text.lower() for text in texts):
        raise ConversionError(message)


def format_constraint(response_format: ResponseFormat) -> OutputConstraint | None:
    """The constraint of a response format, None for text; ConversionError for an invalid schema.

    A strict schema is normalised, any other taken as it is.
    """
    if response_format.kind == "json_object":
        return OutputConstraint("json", "")
    if response_format.kind == "regex":
        return OutputConstraint("regex", response_format.regex or "")
    if response_format.kind == "grammar":
        return OutputConstraint("grammar", response_format.grammar or "")
    if response_format.kind == "choice":
        return OutputConstraint("choice", compact_json(response_format.schema))
    if response_format.kind == "json_schema":
        schema = response_format.schema
        if response_format.strict:
            return OutputConstraint("json", compact_json(strict_response_schema(schema)))
        check_schema(schema, "Invalid json schema: ")
        return OutputConstraint("json", compact_json(schema))
    return None


def tool_constraint(
    tools: Sequence[ToolDefinition], choice: ToolChoice, *, single_call: bool = False
) -> OutputConstraint:
    """The constraint of the tools that the model may or, for the choice `required`, must call; once, if so said."""
    kind = "tool_call_required" if choice == "required" else "tool_call"
    return OutputConstraint(kind, compact_json([_chat_tool(tool) for tool in tools]), single_call=single_call)


def _chat_tool(tool: ToolDefinition) -> dict[str, JsonValue]:
    """The tool as Chat Completions writes it."""
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    chat_tool: dict[str, JsonValue] = {"type": "function", "function": function}
    if tool.defer_loading:
        chat_tool["defer_loading"] = True
    return chat_tool
