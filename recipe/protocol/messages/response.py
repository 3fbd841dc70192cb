"""Messages events, and the response that they add up to.

An event is what it adds to the response; its JSON is made when it is asked for.
"""

from __future__ import annotations

from json.encoder import encode_basestring as json_string
from typing import ClassVar

from recipe.json_value import utf8_str
from recipe.protocol.messages.content_block import AccumulatedBlock, ThinkingBlock
from recipe.stream.chunk import ProtocolChunk
from recipe.stream.finish import Usage
from recipe.stream.inference import count


class MessagesStreamEvent(ProtocolChunk["MessagesResponse"]):
    """One event of a stream. Accumulating it into a response consumes it."""

    __slots__ = ()
    name: ClassVar[str]
    """The event name, which is also the `type` of the JSON."""

    def _add_to(self, response: MessagesResponse) -> None:
        """Most events that only frame others leave the response as it is."""


class MessageStart(MessagesStreamEvent):
    """The message, without content."""

    __slots__ = ("_id", "_model", "_prompt")
    name = "message_start"

    def __init__(self, response_id: str, model: str, prompt: Usage) -> None:
        super().__init__()
        self._id = response_id
        self._model = model
        self._prompt = prompt

    def _json(self) -> str:
        return f'{{"type":"message_start","message":{message_json(self._id, self._model, "", self._prompt)}}}'

    def _add_to(self, response: MessagesResponse) -> None:
        response.begin(self._id, self._model, self._prompt)


class Ping(MessagesStreamEvent):
    """Says that the connection lives."""

    __slots__ = ()
    name = "ping"

    def _json(self) -> str:
        return '{"type":"ping"}'


class ContentBlockStart(MessagesStreamEvent):
    """A content block begins, empty."""

    __slots__ = ("_block", "_index")
    name = "content_block_start"

    def __init__(self, index: int, block: AccumulatedBlock) -> None:
        super().__init__()
        self._index = index
        self._block = block

    def _json(self) -> str:
        return f'{{"type":"content_block_start","index":{self._index},"content_block":{self._block.to_json()}}}'

    def _add_to(self, response: MessagesResponse) -> None:
        response.blocks.append(self._block)


class ContentBlockDelta(MessagesStreamEvent):
    """A piece of the block that is open. `kind` is the type of the delta and `field` the name of its text."""

    __slots__ = ("_index", "_text")
    name = "content_block_delta"
    kind: ClassVar[str]
    field: ClassVar[str]

    def __init__(self, index: int, text: str) -> None:
        self._consumed = False  # made for every token: no call of super().__init__
        self._index = index
        self._text = text

    def _json(self) -> str:
        return (
            f'{{"type":"content_block_delta","index":{self._index},"delta":{{"type":"{self.kind}"'
            f',"{self.field}":{json_string(self._text)}}}}}'
        )

    def _add_to(self, response: MessagesResponse) -> None:
        response.blocks[self._index].add(self._text)


class ThinkingDelta(ContentBlockDelta):
    """A piece of the reasoning."""

    __slots__ = ()
    kind = "thinking_delta"
    field = "thinking"


class TextDelta(ContentBlockDelta):
    """A piece of the answer."""

    __slots__ = ()
    kind = "text_delta"
    field = "text"


class InputJsonDelta(ContentBlockDelta):
    """A piece of the JSON text of a tool's input."""

    __slots__ = ()
    kind = "input_json_delta"
    field = "partial_json"


class SignatureDelta(ContentBlockDelta):
    """The signature that ends a thinking block."""

    __slots__ = ()
    kind = "signature_delta"
    field = "signature"

    def _add_to(self, response: MessagesResponse) -> None:
        block = response.blocks[self._index]
        if isinstance(block, ThinkingBlock):
            block.sign(self._text)


class ContentBlockStop(MessagesStreamEvent):
    """The block that is open is complete."""

    __slots__ = ("_index",)
    name = "content_block_stop"

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index

    def _json(self) -> str:
        return f'{{"type":"content_block_stop","index":{self._index}}}'


class MessageDelta(MessagesStreamEvent):
    """The stop reason and the usage."""

    __slots__ = ("_stop_reason", "_stop_sequence", "_usage")
    name = "message_delta"

    def __init__(self, stop_reason: str, stop_sequence: str | None, usage: Usage) -> None:
        super().__init__()
        self._stop_reason = stop_reason
        self._stop_sequence = stop_sequence
        self._usage = usage

    def _json(self) -> str:
        stop = _stop_json(self._stop_reason, self._stop_sequence)
        return f'{{"type":"message_delta","delta":{{{stop}}},"usage":{usage_json(self._usage)}}}'

    def _add_to(self, response: MessagesResponse) -> None:
        response.end(self._stop_reason, self._stop_sequence, self._usage)


class MessageStop(MessagesStreamEvent):
    """The last event."""

    __slots__ = ()
    name = "message_stop"

    def _json(self) -> str:
        return '{"type":"message_stop"}'


class MessagesResponse:
    """A whole response: the fold of the events of a stream, whose ID, model and usage replace the constructor's."""

    __slots__ = ("_id", "_model", "_stop_reason", "_stop_sequence", "_usage", "blocks")

    def __init__(
        self,
        id: str,  # noqa: A002
        model: str,
        created: int,
        prompt_tokens: int,
        prompt_cache_hit_tokens: int,
    ) -> None:
        self._id = utf8_str(id)
        self._model = utf8_str(model)
        count(created)
        self._usage = Usage(count(prompt_tokens), count(prompt_cache_hit_tokens))
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None
        self.blocks: list[AccumulatedBlock] = []

    def accumulate(self, chunk: MessagesStreamEvent) -> None:
        """Consume the event and apply its delta. RuntimeError when it has been consumed before."""
        _checked(chunk).consume_into(self)

    def to_json(self) -> str:
        """The response as far as it has come."""
        blocks = ",".join(block.to_json() for block in self.blocks)
        stop = _stop_json(self._stop_reason, self._stop_sequence)
        return message_json(self._id, self._model, blocks, self._usage, stop)

    @staticmethod
    def sse_event_name(chunk: MessagesStreamEvent) -> str | None:
        """The name of the event."""
        return _checked(chunk).name

    @staticmethod
    def sse_done_data() -> str | None:
        """None: the stream ends with its last event."""
        return None

    def begin(self, response_id: str, model: str, prompt: Usage) -> None:
        """The message has begun."""
        self._id = response_id
        self._model = model
        self._usage = prompt

    def end(self, stop_reason: str, stop_sequence: str | None, usage: Usage) -> None:
        """The message is complete."""
        self._stop_reason = stop_reason
        self._stop_sequence = stop_sequence
        self._usage = usage


def message_json(
    response_id: str, model: str, blocks: str, usage: Usage, stop: str = '"stop_reason":null,"stop_sequence":null'
) -> str:
    """A message object; `blocks` are the items of its content."""
    return (
        f'{{"id":{json_string(response_id)},"type":"message","role":"assistant","model":{json_string(model)}'
        f',"content":[{blocks}],{stop},"usage":{usage_json(usage)}}}'
    )


def usage_json(usage: Usage) -> str:
    """The usage object: what the cache had is not counted as input."""
    return (
        f'{{"input_tokens":{usage.prompt_cache_miss_tokens},"cache_creation_input_tokens":0'
        f',"cache_read_input_tokens":{usage.prompt_cache_hit_tokens},"output_tokens":{usage.completion_tokens}'
        ',"service_tier":"standard"}'
    )


def _stop_json(stop_reason: str | None, stop_sequence: str | None) -> str:
    reason = "null" if stop_reason is None else f'"{stop_reason}"'
    sequence = "null" if stop_sequence is None else json_string(stop_sequence)
    return f'"stop_reason":{reason},"stop_sequence":{sequence}'


def _checked(chunk: MessagesStreamEvent) -> MessagesStreamEvent:
    if not isinstance(chunk, MessagesStreamEvent):
        raise TypeError(f"expected a MessagesStreamEvent, not {type(chunk).__name__}")
    return chunk
