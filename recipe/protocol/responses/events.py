"""Responses events. An event is what it adds to the response; its JSON is made when it is asked for.

The members of an event are in alphabetical order, after its type.
"""

from __future__ import annotations

from json.encoder import encode_basestring as json_string
from typing import TYPE_CHECKING, ClassVar

from recipe.protocol.responses.items import CallItem, MessageItem, OutputItem, TextItem
from recipe.protocol.responses.response_object import ResponseObject
from recipe.stream.chunk import ProtocolChunk

if TYPE_CHECKING:
    from recipe.protocol.responses.response import ResponsesResponse


class ResponsesStreamEvent(ProtocolChunk["ResponsesResponse"]):
    """One event of a stream. Accumulating it into a response consumes it."""

    __slots__ = ("_number",)
    name: ClassVar[str]
    """The event name, which is also the `type` of the JSON."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def _add_to(self, response: ResponsesResponse) -> None:
        """Events that only repeat what was added leave the response as it is."""


class ResponseEvent(ResponsesStreamEvent):
    """The whole response, at a point of its life."""

    __slots__ = ("_response",)

    def __init__(self, number: int, response: ResponseObject) -> None:
        super().__init__(number)
        self._response = response

    def _json(self) -> str:
        return f'{{"type":"{self.name}","response":{self._response.to_json()},"sequence_number":{self._number}}}'

    def _add_to(self, response: ResponsesResponse) -> None:
        response.replace(self._response)


class ResponseCreated(ResponseEvent):
    """The response exists."""

    __slots__ = ()
    name = "response.created"


class ResponseInProgress(ResponseEvent):
    """The model is at work."""

    __slots__ = ()
    name = "response.in_progress"


class ResponseCompleted(ResponseEvent):
    """The response is complete."""

    __slots__ = ()
    name = "response.completed"


class ResponseIncomplete(ResponseEvent):
    """The response ended before it was complete."""

    __slots__ = ()
    name = "response.incomplete"


class OutputItemAdded(ResponsesStreamEvent):
    """An item begins; `item` is for the response that accumulates the event."""

    __slots__ = ("_item",)
    name = "response.output_item.added"

    def __init__(self, number: int, item: OutputItem) -> None:
        super().__init__(number)
        self._item = item

    def _json(self) -> str:
        return (
            f'{{"type":"{self.name}","item":{self._item.to_json()},"output_index":{self._item.place.index}'
            f',"sequence_number":{self._number}}}'
        )

    def _add_to(self, response: ResponsesResponse) -> None:
        response.items.append(self._item)


class OutputItemDone(OutputItemAdded):
    """An item is complete, or cut off."""

    __slots__ = ()
    name = "response.output_item.done"

    def _add_to(self, response: ResponsesResponse) -> None:
        response.items[self._item.place.index] = self._item


class ContentPartAdded(ResponsesStreamEvent):
    """The content part of an item begins."""

    __slots__ = ("_item",)
    name = "response.content_part.added"

    def __init__(self, number: int, item: TextItem) -> None:
        super().__init__(number)
        self._item = item

    def _json(self) -> str:
        return (
            f'{{"type":"{self.name}","content_index":0,"item_id":{self._item.id_json}'
            f',"output_index":{self._item.place.index},"part":{self._part_json()},"sequence_number":{self._number}}}'
        )

    def _part_json(self) -> str:
        return self._item.blank().part_json

    def _add_to(self, response: ResponsesResponse) -> None:
        item = response.items[self._item.place.index]
        if isinstance(item, TextItem):
            item.open_part()


class ContentPartDone(ContentPartAdded):
    """The content part of an item is complete."""

    __slots__ = ()
    name = "response.content_part.done"

    def _part_json(self) -> str:
        return self._item.part_json

    def _add_to(self, response: ResponsesResponse) -> None:
        """The part has been added piece by piece."""


class OutputTextDelta(ResponsesStreamEvent):
    """A piece of the answer."""

    __slots__ = ("_item", "_logprobs", "_text")
    name = "response.output_text.delta"

    def __init__(self, number: int, item: MessageItem, text: str, logprobs: str | None) -> None:
        self._consumed = False  # made for every token: no call of super().__init__
        self._number = number
        self._item = item
        self._text = text
        self._logprobs = logprobs

    def _json(self) -> str:
        item = self._item
        return (
            f'{{"type":"response.output_text.delta","content_index":0,"delta":{json_string(self._text)}'
            f',"item_id":{item.id_json},"logprobs":[{self._logprobs or ""}],"output_index":{item.place.index}'
            f',"sequence_number":{self._number}}}'
        )

    def _add_to(self, response: ResponsesResponse) -> None:
        response.items[self._item.place.index].add(self._text, self._logprobs)


class OutputTextDone(ResponsesStreamEvent):
    """The answer's text is complete."""

    __slots__ = ("_item",)
    name = "response.output_text.done"

    def __init__(self, number: int, item: MessageItem) -> None:
        super().__init__(number)
        self._item = item

    def _json(self) -> str:
        item = self._item
        return (
            f'{{"type":"{self.name}","content_index":0,"item_id":{item.id_json},"logprobs":{item.logprobs_json}'
            f',"output_index":{item.place.index},"sequence_number":{self._number},"text":{item.text_json}}}'
        )


class ReasoningTextDelta(ResponsesStreamEvent):
    """A piece of the reasoning."""

    __slots__ = ("_item", "_text")
    name = "response.reasoning_text.delta"

    def __init__(self, number: int, item: OutputItem, text: str) -> None:
        self._consumed = False  # made for every token: no call of super().__init__
        self._number = number
        self._item = item
        self._text = text

    def _json(self) -> str:
        item = self._item
        return (
            f'{{"type":"response.reasoning_text.delta","content_index":0,"delta":{json_string(self._text)}'
            f',"item_id":{item.id_json},"output_index":{item.place.index},"sequence_number":{self._number}}}'
        )

    def _add_to(self, response: ResponsesResponse) -> None:
        response.items[self._item.place.index].add(self._text)


class ReasoningTextDone(ResponsesStreamEvent):
    """The reasoning is complete."""

    __slots__ = ("_item",)
    name = "response.reasoning_text.done"

    def __init__(self, number: int, item: OutputItem) -> None:
        super().__init__(number)
        self._item = item

    def _json(self) -> str:
        item = self._item
        return (
            f'{{"type":"{self.name}","content_index":0,"item_id":{item.id_json}'
            f',"output_index":{item.place.index},"sequence_number":{self._number},"text":{item.text_json}}}'
        )


class CallDelta(ResponsesStreamEvent):
    """A piece of what a tool is called with."""

    __slots__ = ("_item", "_text")

    def __init__(self, number: int, item: CallItem, text: str) -> None:
        super().__init__(number)
        self._item = item
        self._text = text

    def _json(self) -> str:
        item = self._item
        return (
            f'{{"type":"{self.name}","delta":{json_string(self._text)},"item_id":{item.id_json}'
            f',"output_index":{item.place.index},"sequence_number":{self._number}}}'
        )

    def _add_to(self, response: ResponsesResponse) -> None:
        response.items[self._item.place.index].add(self._text)


class CallDone(ResponsesStreamEvent):
    """What a tool is called with is complete. `field` is the member that holds it."""

    __slots__ = ("_item",)
    field: ClassVar[str]

    def __init__(self, number: int, item: CallItem) -> None:
        super().__init__(number)
        self._item = item

    def _json(self) -> str:
        item = self._item
        return (
            f'{{"type":"{self.name}","{self.field}":{item.text_json},"item_id":{item.id_json}'
            f',"output_index":{item.place.index},"sequence_number":{self._number}}}'
        )


class FunctionCallArgumentsDelta(CallDelta):
    """A piece of the arguments of a function."""

    __slots__ = ()
    name = "response.function_call_arguments.delta"


class FunctionCallArgumentsDone(CallDone):
    """The arguments of a function are complete."""

    __slots__ = ()
    name = "response.function_call_arguments.done"
    field = "arguments"


class CustomToolCallInputDelta(CallDelta):
    """A piece of the input of a custom tool."""

    __slots__ = ()
    name = "response.custom_tool_call_input.delta"


class CustomToolCallInputDone(CallDone):
    """The input of a custom tool is complete."""

    __slots__ = ()
    name = "response.custom_tool_call_input.done"
    field = "input"
