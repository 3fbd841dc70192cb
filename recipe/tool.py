"""The tools of a conversation: what the client offers, and the calls of its history."""

from typing import Any, Self

from recipe.argument import flag, option, quoted, text
from recipe.json_value import JsonValue, json_value


class ToolCall:
    """A tool call of the history. `arguments` should be the text of a JSON object; nothing checks it."""

    __slots__ = ("_arguments", "_id", "_name")

    def __init__(self, id: str, name: str, arguments: str) -> None:  # noqa: A002
        self._id = text("id", id)
        self._name = text("name", name)
        self._arguments = text("arguments", arguments)

    @classmethod
    def trusted(cls, id: str, name: str, arguments: str) -> Self:  # noqa: A002
        self = cls.__new__(cls)
        self._id, self._name, self._arguments = id, name, arguments
        return self

    @property
    def id(self) -> str:
        return self._id

    @property
    def name(self) -> str:
        return self._name

    @property
    def arguments(self) -> str:
        return self._arguments

    def __repr__(self) -> str:
        return f"ToolCall(id={quoted(self._id)}, name={quoted(self._name)}, arguments={quoted(self._arguments)})"


class ToolDefinition:
    """A tool that the client offers. `parameters` is a JSON Schema, never normalised here, whatever `strict` says."""

    __slots__ = ("_defer_loading", "_description", "_name", "_parameters", "_strict")

    def __init__(
        self,
        name: str,
        description: str | None = None,
        parameters: Any = None,
        strict: bool | None = None,
        defer_loading: bool = False,
    ) -> None:
        self._name = text("name", name)
        self._description = None if description is None else text("description", description)
        self._parameters = json_value(parameters)
        self._strict = None if strict is None else flag("strict", strict)
        self._defer_loading = flag("defer_loading", defer_loading)

    @classmethod
    def trusted(
        cls,
        name: str,
        description: str | None,
        parameters: JsonValue,
        strict: bool | None = None,
        defer_loading: bool = False,
    ) -> Self:
        self = cls.__new__(cls)
        self._name, self._description, self._parameters = name, description, parameters
        self._strict, self._defer_loading = strict, defer_loading
        return self

    @property
    def name(self) -> str:
        return self._name

    @property
    def description(self) -> str | None:
        return self._description

    @property
    def parameters(self) -> JsonValue:
        """JSON Schema of the arguments. The object is shared: read it, do not change it."""
        return self._parameters

    @property
    def strict(self) -> bool | None:
        return self._strict

    @property
    def defer_loading(self) -> bool:
        return self._defer_loading

    def __repr__(self) -> str:
        strict = "None" if self._strict is None else f"Some({str(self._strict).lower()})"
        return f"ToolDefinition(name={quoted(self._name)}, description={option(self._description)}, strict={strict})"
