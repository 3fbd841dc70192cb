"""What a response reports of the request that it answers.

The settings are reported as they were requested, not as they were resolved, in normalised shapes: every optional field
that is missing is null, an unknown tool is left out, a custom tool has its name alone.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

from recipe.json_value import JsonValue
from recipe.protocol.responses.schema import (
    PlainChoice,
    ReasoningConfig,
    ResponsesBody,
    TextConfig,
    ToolChoice,
    UnknownTool,
)
from recipe.protocol.validation import f32


class ResponsesEcho:
    """The settings of one request; constructed directly, those of a request that specifies nothing.

    Metadata and whether calls may be parallel are known of requests that were read with extensions.
    """

    __slots__ = ("_body", "_fields")

    def __init__(self) -> None:
        self._body = ResponsesBody(model="")
        self._fields: dict[str, JsonValue] | None = None

    @classmethod
    def of_body(cls, body: ResponsesBody) -> Self:
        """The settings of a decoded request."""
        self = cls.__new__(cls)
        self._body = body
        self._fields = None
        return self

    def __getstate__(self) -> tuple[ResponsesBody, dict[str, JsonValue]]:
        """What is reported, without the rest of the body: the input may be large."""
        body = self._body
        reported = ResponsesBody(
            model=body.model,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_logprobs=body.top_logprobs,
            user=body.user,
        )
        return reported, self.fields()

    def __setstate__(self, state: tuple[ResponsesBody, dict[str, JsonValue]]) -> None:
        self._body, self._fields = state

    @property
    def instructions(self) -> str | None:
        return self._body.instructions

    @property
    def max_output_tokens(self) -> int | None:
        return self._body.max_output_tokens

    @property
    def temperature(self) -> float:
        """The temperature requested, in single precision, or 1.0; not the one sampled with."""
        return _requested_f32(self._body.temperature)

    @property
    def top_p(self) -> float:
        """The `top_p` requested, in single precision, or 1.0; not the one sampled with."""
        return _requested_f32(self._body.top_p)

    @property
    def top_logprobs(self) -> int:
        """The `top_logprobs` requested, or 0."""
        return self._body.top_logprobs or 0

    @property
    def user(self) -> str | None:
        return self._body.user

    def fields(self) -> dict[str, JsonValue]:
        """The fields of a response object that come from the request, ready to be written as JSON."""
        if self._fields is None:
            self._fields = self._read_fields()
        return self._fields

    def _read_fields(self) -> dict[str, JsonValue]:
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": getattr(self._body, "metadata", None) or {},
            "parallel_tool_calls": getattr(self._body, "parallel_tool_calls", None) is not False,
            "reasoning": _reasoning(self._body.reasoning or ReasoningConfig()),
            "temperature": shortest_f32(self.temperature),
            "text": msgspec.to_builtins(self._body.text or TextConfig()),
            "tool_choice": _tool_choice(self._body.tool_choice),
            "tools": [
                msgspec.to_builtins(tool) for tool in self._body.tools or () if not isinstance(tool, UnknownTool)
            ],
            "top_logprobs": self.top_logprobs,
            "top_p": shortest_f32(self.top_p),
            "user": self.user,
        }


class ResponsesState(msgspec.Struct, frozen=True):
    """What the event stream of a converted request needs to know of it.

    `namespace_tool_map` maps function names to (namespace, local name). `apply_patch` and `tool_search` say whether
    calls of these names answer a custom tool and a client-side tool search, and are reported as such.
    """

    echo: ResponsesEcho
    namespace_tool_map: dict[str, tuple[str, str]]
    apply_patch: bool
    tool_search: bool


def shortest_f32(value: float) -> float | None:
    """The single-precision `value` as the double with its shortest decimal spelling; None for an infinity.

    0.3 in single precision is 0.30000001192092896; written as JSON it is to be 0.3.
    """
    if value in (float("inf"), float("-inf")):
        return None
    spellings = (float(f"{value:.{digits}g}") for digits in range(1, 9))
    return next((short for short in spellings if f32(short) == value), float(f"{value:.9g}"))


def _reasoning(config: ReasoningConfig) -> dict[str, Any]:
    return {"effort": config.effort, "summary": config.summary or config.generate_summary}


def _tool_choice(choice: ToolChoice | None) -> JsonValue:
    if choice is None:
        return "auto"
    return choice.word if isinstance(choice, PlainChoice) else msgspec.to_builtins(choice)


def _requested_f32(value: float | None) -> float:
    return 1.0 if value is None else f32(value)
