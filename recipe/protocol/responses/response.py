"""The Responses response that the events of a stream add up to."""

from __future__ import annotations

from dataclasses import replace

from recipe.json_value import utf8_str
from recipe.protocol.responses.echo import ResponsesEcho
from recipe.protocol.responses.events import ResponsesStreamEvent
from recipe.protocol.responses.items import OutputItem
from recipe.protocol.responses.response_object import ResponseHead, ResponseObject
from recipe.stream.inference import count

__all__ = ["ResponsesResponse", "ResponsesStreamEvent"]


class ResponsesResponse:
    """A whole response: the fold of the events of a stream, whose response object replaces the constructor's."""

    __slots__ = ("_response", "items")

    def __init__(
        self,
        id: str,  # noqa: A002
        model: str,
        created: int,
        prompt_tokens: int,
        prompt_cache_hit_tokens: int,
    ) -> None:
        count(prompt_tokens)
        count(prompt_cache_hit_tokens)
        head = ResponseHead(utf8_str(id), utf8_str(model), count(created), ResponsesEcho())
        self._response = ResponseObject(head)
        self.items: list[OutputItem] = []

    def accumulate(self, chunk: ResponsesStreamEvent) -> None:
        """Consume the event and apply its delta. RuntimeError when it has been consumed before."""
        _checked(chunk).consume_into(self)

    def to_json(self) -> str:
        """The response as far as it has come."""
        return replace(self._response, items=self.items).to_json()

    @staticmethod
    def sse_event_name(chunk: ResponsesStreamEvent) -> str | None:
        """The name of the event."""
        return _checked(chunk).name

    @staticmethod
    def sse_done_data() -> str | None:
        """None: the stream ends with its last event."""
        return None

    def replace(self, response: ResponseObject) -> None:
        """The response is now this one."""
        self._response = response
        self.items = list(response.items)


def _checked(chunk: ResponsesStreamEvent) -> ResponsesStreamEvent:
    if not isinstance(chunk, ResponsesStreamEvent):
        raise TypeError(f"expected a ResponsesStreamEvent, not {type(chunk).__name__}")
    return chunk
