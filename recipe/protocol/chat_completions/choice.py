"""One answer of a Chat Completions response, as far as its chunks have brought it."""

from __future__ import annotations

from dataclasses import dataclass, field
from json.encoder import encode_basestring as json_string

from recipe.stream.finish import FinishKind


class AccumulatedText:
    """A text in pieces, None until the first one arrives, with its log probabilities."""

    __slots__ = ("logprobs", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] | None = None
        self.logprobs: list[str] = []

    def add(self, text: str, logprobs: str | None = None) -> None:
        """Append a piece."""
        if self.pieces is None:
            self.pieces = [text]
        else:
            self.pieces.append(text)
        if logprobs is not None:
            self.logprobs.append(logprobs)

    def text_json(self) -> str:
        return "null" if self.pieces is None else json_string("".join(self.pieces))

    def logprobs_json(self, name: str) -> list[str]:
        """The log probabilities as the member `name` of an object, if there are any."""
        return [f'"{name}":[{",".join(self.logprobs)}]'] if self.logprobs else []


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
        content, reasoning = self.content, self.reasoning
        message = f'"role":"assistant","content":{content.text_json()}'
        if reasoning.pieces is not None:
            message += f',"reasoning_content":{reasoning.text_json()}'
        if self.calls:
            message += f',"tool_calls":[{",".join(call.to_json() for call in self.calls)}]'
        logprobs = ""
        if content.logprobs or reasoning.logprobs:
            logprobs = ",".join([*content.logprobs_json("content"), *reasoning.logprobs_json("reasoning_content")])
        return (
            f'{{"index":{self._index},"message":{{{message}}},"logprobs":{f"{{{logprobs}}}" if logprobs else "null"}'
            f',"finish_reason":{optional_string(self.finish_reason)}}}'
        )


def optional_string(text: str | None) -> str:
    """The text as JSON, or null."""
    return "null" if text is None else json_string(text)
