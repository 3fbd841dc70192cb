"""Responses events of what the parser finds: one output item at a time, opened by its first piece."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from recipe.json_value import utf8_str
from recipe.protocol.responses import events
from recipe.protocol.responses.custom_input import CustomInput
from recipe.protocol.responses.echo import ResponsesEcho, ResponsesState
from recipe.protocol.responses.events import ResponsesStreamEvent
from recipe.protocol.responses.items import (
    CallItem,
    CustomToolCallItem,
    FunctionCallItem,
    ItemPlace,
    MessageItem,
    OutputItem,
    ReasoningItem,
    TextItem,
    ToolSearchCallItem,
)
from recipe.protocol.responses.response_object import ResponseHead, ResponseObject
from recipe.request import ConversationRequest
from recipe.stream.call_id import tool_call_id
from recipe.stream.chunk_queue import ChunkQueue
from recipe.stream.finish import FinishKind, FinishReason, Usage

_INCOMPLETE_REASONS: dict[FinishKind, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}


class _SplitNames(dict[str, tuple[str, str]]):
    """The namespace map of a request that declared none: a name `namespace::name` says itself what it stands for."""

    def __missing__(self, name: str) -> tuple[str, str]:
        namespace, separator, local_name = name.partition("::")
        if not separator:
            raise KeyError(name)
        return namespace, local_name


class ResponsesChunkGenerator(ChunkQueue[ResponsesStreamEvent]):
    """Makes the events of one response; a stream processor consumes it."""

    __slots__ = (
        "_calls",
        "_custom_input",
        "_has_reasoning",
        "_head",
        "_id",
        "_item",
        "_items",
        "_model",
        "_number",
        "_state",
        "_thinking_mode",
    )

    def __init__(self, response_id: str, model: str, *, thinking_mode: bool, state: ResponsesState) -> None:
        super().__init__()
        self._id = response_id
        self._model = model
        self._thinking_mode = thinking_mode
        self._state = state
        self._items: list[OutputItem] = []
        self._item: OutputItem | None = None  # the one that is open
        self._custom_input = CustomInput()  # of the custom tool call that is open
        self._number = 0  # of the next event
        self._calls = 0
        self._has_reasoning = False

    @classmethod
    def for_request(cls, request: ConversationRequest, response_id: str, model: str) -> ResponsesChunkGenerator:
        """The generator of the response to `request`, whichever protocol it came by."""
        state = request.protocol_state
        if not isinstance(state, ResponsesState):
            state = ResponsesState(ResponsesEcho(), _SplitNames(), apply_patch=False, tool_search=False)
        return cls(response_id, model, thinking_mode=request.conversation.thinking_mode, state=state)

    def with_namespace_tool_map(self, namespace_tool_map: dict[str, tuple[str, str]]) -> ResponsesChunkGenerator:
        """Consume this generator; the new one reports the functions of the map as (namespace, local name)."""
        return self._with(namespace_tool_map=_checked_map(namespace_tool_map))

    def with_echo(self, echo: ResponsesEcho) -> ResponsesChunkGenerator:
        """Consume this generator; the new one reports these settings of the request."""
        if not isinstance(echo, ResponsesEcho):
            raise TypeError(f"expected a ResponsesEcho, not {type(echo).__name__}")
        return self._with(echo=echo)

    def open(self, prompt: Usage, system_fingerprint: str | None) -> None:
        """The response begins."""
        self._head = ResponseHead(self._id, self._model, int(time.time()), self._state.echo)
        self._add(events.ResponseCreated(self._number, ResponseObject(self._head)))
        self._add(events.ResponseInProgress(self._number, ResponseObject(self._head)))

    def reasoning(self, text: str, logprobs: str | None) -> None:
        """A piece of the reasoning."""
        self._has_reasoning = True
        item = self._item
        if not isinstance(item, ReasoningItem):
            item = ReasoningItem(self._next_place())
            self._start_text(item)
        item.add(text)
        self._add(events.ReasoningTextDelta(self._number, item, text))

    def content(self, text: str, logprobs: str | None) -> None:
        """A piece of the answer."""
        item = self._item
        if not isinstance(item, MessageItem):
            item = MessageItem(self._next_place())
            self._start_text(item)
        item.add(text, logprobs)
        self._add(events.OutputTextDelta(self._number, item, text, logprobs))

    def tool_call(self, name: str) -> None:
        """A tool call begins."""
        call_id = tool_call_id(self._calls, self._thinking_mode and not self._has_reasoning)
        self._calls += 1
        if isinstance(self._item, MessageItem):
            self._item.phase = "commentary"
        self._custom_input = CustomInput()
        self._start(self._call_item(call_id, name))

    def arguments(self, text: str) -> None:
        """A piece of the arguments of the last tool call."""
        item = self._item
        if isinstance(item, CustomToolCallItem):
            self._add_input(item, self._custom_input.feed(text))
        elif isinstance(item, CallItem):
            item.add(text)
            if isinstance(item, FunctionCallItem):
                self._add(events.FunctionCallArgumentsDelta(self._number, item, text))

    def finish(self, reason: FinishReason, usage: Usage) -> None:
        """The response is complete, or was cut off."""
        incomplete_reason = _INCOMPLETE_REASONS.get(reason.kind)
        status = "completed" if incomplete_reason is None else "incomplete"
        self._stop(status)
        response = ResponseObject(self._head, self._items, status, int(time.time()), incomplete_reason, usage)
        last = events.ResponseCompleted if incomplete_reason is None else events.ResponseIncomplete
        self._add(last(self._number, response))

    def _with(self, **changes: object) -> ResponsesChunkGenerator:
        self.consume()
        state = msgspec.structs.replace(self._state, **changes)
        return ResponsesChunkGenerator(self._id, self._model, thinking_mode=self._thinking_mode, state=state)

    def _add(self, event: ResponsesStreamEvent) -> None:
        self._chunks.append(event)
        self._number += 1

    def _next_place(self) -> ItemPlace:
        return ItemPlace(self._id, len(self._items))

    def _call_item(self, call_id: str, name: str) -> CallItem:
        place = self._next_place()
        if name == "apply_patch" and self._state.apply_patch:
            return CustomToolCallItem(place, call_id, name)
        if name == "tool_search" and self._state.tool_search:
            return ToolSearchCallItem(place, call_id, name)
        try:
            namespace, local_name = self._state.namespace_tool_map[name]
        except KeyError:
            return FunctionCallItem(place, call_id, name)
        return FunctionCallItem(place, call_id, local_name, namespace)

    def _start(self, item: OutputItem) -> None:
        self._stop("completed")
        self._item = item
        self._items.append(item)
        self._add(events.OutputItemAdded(self._number, item.blank()))

    def _start_text(self, item: TextItem) -> None:
        self._start(item)
        item.open_part()
        self._add(events.ContentPartAdded(self._number, item))

    def _stop(self, status: str) -> None:
        """End the open item, if there is one."""
        item = self._item
        if item is None:
            return
        if isinstance(item, CustomToolCallItem):
            self._add_input(item, self._custom_input.end())
        item.end(status)
        for ending in _ENDINGS[type(item)]:
            self._add(ending(self._number, item))
        self._item = None

    def _add_input(self, item: CustomToolCallItem, text: str) -> None:
        if text:
            item.add(text)
            self._add(events.CustomToolCallInputDelta(self._number, item, text))


_ENDINGS: dict[type[OutputItem], tuple[Callable[[int, Any], ResponsesStreamEvent], ...]] = {
    ReasoningItem: (events.ReasoningTextDone, events.ContentPartDone, events.OutputItemDone),
    MessageItem: (events.OutputTextDone, events.ContentPartDone, events.OutputItemDone),
    FunctionCallItem: (events.FunctionCallArgumentsDone, events.OutputItemDone),
    CustomToolCallItem: (events.CustomToolCallInputDone, events.OutputItemDone),
    ToolSearchCallItem: (events.OutputItemDone,),
}
"""The events that end an item of each kind."""


def _checked_map(names: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """A copy of the map; TypeError for other types, ValueError for tuples of another length."""
    if not isinstance(names, dict):
        raise TypeError(f"expected a dict, not {type(names).__name__}")
    return {utf8_str(name): _checked_pair(pair) for name, pair in names.items()}


def _checked_pair(pair: tuple[str, str]) -> tuple[str, str]:
    if not isinstance(pair, tuple) or not all(isinstance(part, str) for part in pair):
        raise TypeError("a namespace and a local name must be a tuple of two strings")
    if len(pair) != 2:
        raise ValueError(f"expected tuple of length 2, but got tuple of length {len(pair)}")
    return pair
