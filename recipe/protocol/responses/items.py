"""The output items of a Responses response, as far as they have come.

A generator and an accumulating response each have their own items; `blank` makes the one of the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from json.encoder import encode_basestring as json_string
from typing import ClassVar, Self

from recipe.protocol.call_arguments import arguments_json


@dataclass(frozen=True, slots=True)
class ItemPlace:
    """Where an item stands: the ID of its response, and its index in the output."""

    response_id: str
    index: int


class OutputItem(ABC):
    """An item that grows piece by piece. `status` is in_progress, completed or incomplete."""

    __slots__ = ("_pieces", "id_json", "place", "status")
    prefix: ClassVar[str]
    """The first part of the ID."""

    def __init__(self, place: ItemPlace) -> None:
        self.place = place
        self.id_json = json_string(f"{self.prefix}_{place.response_id}_{place.index}")
        self.status = "in_progress"
        self._pieces: list[str] = []

    @abstractmethod
    def blank(self) -> Self:
        """The item as it began."""

    @abstractmethod
    def to_json(self) -> str:
        """The item as JSON."""

    def add(self, text: str, logprobs: str | None = None) -> None:
        """Append a piece; `logprobs` are JSON array items."""
        self._pieces.append(text)

    def end(self, status: str) -> None:
        """Nothing more comes."""
        self.status = status

    @property
    def text_json(self) -> str:
        """The text so far, as a JSON string."""
        return json_string("".join(self._pieces))


class TextItem(OutputItem):
    """An item with one content part."""

    __slots__ = ("_has_part",)

    def __init__(self, place: ItemPlace) -> None:
        super().__init__(place)
        self._has_part = False

    def blank(self) -> Self:
        return type(self)(self.place)

    def open_part(self) -> None:
        """The content part begins."""
        self._has_part = True

    @property
    def content_json(self) -> str:
        """The list of content parts."""
        return f"[{self.part_json}]" if self._has_part else "[]"

    @property
    @abstractmethod
    def part_json(self) -> str:
        """The content part."""


class ReasoningItem(TextItem):
    """The reasoning."""

    __slots__ = ()
    prefix = "rs"

    @property
    def part_json(self) -> str:
        return f'{{"type":"reasoning_text","text":{self.text_json}}}'

    def to_json(self) -> str:
        encrypted = json_string(f"{self.place.response_id}-{self.place.index}")
        return (
            f'{{"type":"reasoning","id":{self.id_json},"status":"{self.status}","content":{self.content_json}'
            f',"summary":[],"encrypted_content":{encrypted}}}'
        )


class MessageItem(TextItem):
    """A part of the answer. `phase` is commentary when tool calls follow, else final_answer."""

    __slots__ = ("_logprobs", "phase")
    prefix = "msg"

    def __init__(self, place: ItemPlace) -> None:
        super().__init__(place)
        self._logprobs: list[str] = []
        self.phase = "final_answer"

    def add(self, text: str, logprobs: str | None = None) -> None:
        self._pieces.append(text)
        if logprobs is not None:
            self._logprobs.append(logprobs)

    @property
    def logprobs_json(self) -> str:
        return f"[{','.join(self._logprobs)}]"

    @property
    def part_json(self) -> str:
        return f'{{"type":"output_text","annotations":[],"logprobs":{self.logprobs_json},"text":{self.text_json}}}'

    def to_json(self) -> str:
        return (
            f'{{"type":"message","id":{self.id_json},"status":"{self.status}","role":"assistant"'
            f',"phase":"{self.phase}","content":{self.content_json}}}'
        )


class CallItem(OutputItem):
    """A tool call."""

    __slots__ = ("_call_id", "_name")

    def __init__(self, place: ItemPlace, call_id: str, name: str) -> None:
        super().__init__(place)
        self._call_id = call_id
        self._name = name

    def blank(self) -> Self:
        return type(self)(self.place, self._call_id, self._name)


class FunctionCallItem(CallItem):
    """A call of a function, which may belong to a namespace."""

    __slots__ = ("_namespace",)
    prefix = "fc"

    def __init__(self, place: ItemPlace, call_id: str, name: str, namespace: str | None = None) -> None:
        super().__init__(place, call_id, name)
        self._namespace = namespace

    def blank(self) -> Self:
        return type(self)(self.place, self._call_id, self._name, self._namespace)

    def to_json(self) -> str:
        namespace = "" if self._namespace is None else f',"namespace":{json_string(self._namespace)}'
        return (
            f'{{"type":"function_call","id":{self.id_json},"status":"{self.status}","call_id":"{self._call_id}"'
            f',"name":{json_string(self._name)}{namespace},"arguments":{self.text_json}}}'
        )


class CustomToolCallItem(CallItem):
    """A call of a custom tool; its input is plain text."""

    __slots__ = ()
    prefix = "ctc"

    def to_json(self) -> str:
        return (
            f'{{"type":"custom_tool_call","id":{self.id_json},"status":"{self.status}","call_id":"{self._call_id}"'
            f',"name":{json_string(self._name)},"input":{self.text_json}}}'
        )


class ToolSearchCallItem(CallItem):
    """A search for tools, to be done by the client. The arguments are shown when the call is complete."""

    __slots__ = ("_arguments",)
    prefix = "tsc"

    def __init__(self, place: ItemPlace, call_id: str, name: str) -> None:
        super().__init__(place, call_id, name)
        self._arguments = "{}"

    def end(self, status: str) -> None:
        """Nothing more comes; a call whose arguments are no JSON is incomplete."""
        arguments = arguments_json("".join(self._pieces)) if status == "completed" else None
        self.status = "incomplete" if arguments is None else status
        self._arguments = arguments or "{}"

    def to_json(self) -> str:
        return (
            f'{{"type":"tool_search_call","id":{self.id_json},"status":"{self.status}","call_id":"{self._call_id}"'
            f',"execution":"client","arguments":{self._arguments}}}'
        )
