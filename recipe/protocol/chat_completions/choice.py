"""One answer of a Chat Completions response, as far as its chunks have brought it."""

from __future__ import annotations

from dataclasses import dataclass, field
from json.encoder import encode_basestring as json_string

from recipe.stream.finish import FinishKind


class AccumulatedText:
    """A text with its log probabilities; null until the first piece arrives."""

    __slots__ = ("_logprobs", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[str] | None = None
        self._logprobs: list[str] = []

    def add(self, text: str, logprobs: str | None = None) -> None:
        """Append a piece."""
        if self._pieces is None:
            self._pieces = []
        self._pieces.append(text)
        if logprobs is not None:
            self._logprobs.append(logprobs)

    @property
    def is_null(self) -> bool:
        return self._pieces is None

    def text_json(self) -> str:
        return optional_string(None if self._pieces is None else "".join(self._pieces))

    def logprobs_json(self, name: str) -> list[str]:
        """The log probabilities as the member `name` of an object, if there are any."""
        return [f'"{name}":[{",".join(self._logprobs)}]'] if self._logprobs else []


@dataclass(slots=True)
class AccumulatedCall:
    """A tool call, as far as it has come."""

    index: int
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        function = f'{{"name":{json_string(self.name)},"arguments":{json_string("".join(self.arguments))}}}'
        return f'{{"index":{self.index},"id":"{self.id}","type":"function","function":{function}}}'


class AccumulatedChoice:
    """The message of one choice, with its log probabilities and the reason it ended."""

    __slots__ = ("_index", "calls", "content", "finish_reason", "reasoning")

    def __init__(self, index: int) -> None:
        self._index = index
        self.content = AccumulatedText()
        self.reasoning = AccumulatedText()
        self.calls: list[AccumulatedCall] = []
        self.finish_reason: FinishKind | None = None

    def to_json(self) -> str:
        message = f'"role":"assistant","content":{self.content.text_json()}'
        if not self.reasoning.is_null:
            message += f',"reasoning_content":{self.reasoning.text_json()}'
        if self.calls:
            message += f',"tool_calls":[{",".join(call.to_json() for call in self.calls)}]'
        logprobs = ",".join(
            [*self.content.logprobs_json("content"), *self.reasoning.logprobs_json("reasoning_content")]
        )
        return (
            f'{{"index":{self._index},"message":{{{message}}},"logprobs":{f"{{{logprobs}}}" if logprobs else "null"}'
            f',"finish_reason":{optional_string(self.finish_reason)}}}'
        )


def optional_string(text: str | None) -> str:
    """The text as JSON, or null."""
    return "null" if text is None else json_string(text)
