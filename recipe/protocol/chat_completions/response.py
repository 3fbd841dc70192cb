"""Chat Completions chunks, and the response that they add up to.

A chunk is what it adds to the response. Its JSON is made when it is asked for, from a frame that is the same for
the whole stream: a piece of text costs an escape and a concatenation. Log probabilities are the items of a JSON
array, as the decoder spelled them.
"""

from __future__ import annotations

from json.encoder import encode_basestring as json_string

from recipe.json_value import utf8_str
from recipe.protocol.chat_completions.choice import AccumulatedCall, AccumulatedChoice, optional_string
from recipe.stream.chunk import ProtocolChunk
from recipe.stream.finish import FinishKind, Usage
from recipe.stream.inference import count


class StreamFrame:
    """The JSON around the deltas of one choice, written when the first chunk is asked for its JSON.

    `created` is in seconds since the epoch.
    """

    head: str
    prefix: str
    suffix: str
    null_reasoning: str
    null_usage: str
    __slots__ = (
        "_identity",
        "_reports_null_usage",
        "_thinking_mode",
        "head",
        "index",
        "null_reasoning",
        "null_usage",
        "prefix",
        "suffix",
        "system_fingerprint",
    )

    def __init__(
        self,
        response_id: str,
        model: str,
        created: int,
        system_fingerprint: str | None,
        thinking_mode: bool,
        reports_null_usage: bool,
        index: int,
    ) -> None:
        self.index = index
        self.system_fingerprint = system_fingerprint
        self._identity = (response_id, model, created)
        self._thinking_mode, self._reports_null_usage = thinking_mode, reports_null_usage

    def __getattr__(self, name: str) -> str:
        """A text that has not been written yet; a whole response needs none of them."""
        if name not in _FRAME_TEXTS:
            raise AttributeError(name)
        self._write()
        text: str = getattr(self, name)
        return text

    def _write(self) -> None:
        response_id, model, created = self._identity
        self.head = (
            f'{{"id":{json_string(response_id)},"object":"chat.completion.chunk","created":{created},"model":{json_string(model)}'
            f',"system_fingerprint":{optional_string(self.system_fingerprint)},'
        )
        self.prefix = f'{self.head}"choices":[{{"index":{self.index},"delta":{{'
        self.null_reasoning = ',"reasoning_content":null' if self._thinking_mode else ""
        self.null_usage = ',"usage":null}' if self._reports_null_usage else "}"
        self.suffix = '},"logprobs":null,"finish_reason":null}]' + self.null_usage


_FRAME_TEXTS = frozenset({"head", "null_reasoning", "null_usage", "prefix", "suffix"})


class ChatCompletionChunk(ProtocolChunk["ChatCompletionResponse"]):
    """One chunk of a stream. Accumulating it into a response consumes it.

    Those that every response has are made without a call of `super().__init__`.
    """

    __slots__ = ("_frame",)

    def __init__(self, frame: StreamFrame) -> None:
        self._consumed = False
        self._frame = frame


class OpeningChunk(ChatCompletionChunk):
    """The role, and an empty text of the kind that comes first."""

    __slots__ = ("_starts_in_reasoning",)

    def __init__(self, frame: StreamFrame, starts_in_reasoning: bool) -> None:
        self._consumed = False
        self._frame = frame
        self._starts_in_reasoning = starts_in_reasoning

    def _json(self) -> str:
        frame = self._frame
        texts = '"content":null,"reasoning_content":""' if self._starts_in_reasoning else '"content":""'
        null_reasoning = "" if self._starts_in_reasoning else frame.null_reasoning
        return f'{frame.prefix}"role":"assistant",{texts}{null_reasoning}{frame.suffix}'

    def _add_to(self, response: ChatCompletionResponse) -> None:
        choice = response.begin(self._frame.index, self._frame.system_fingerprint)
        (choice.reasoning if self._starts_in_reasoning else choice.content).add("")


class TextChunk(ChatCompletionChunk):
    """A piece of text, with the log probabilities of its tokens if they were asked for."""

    __slots__ = ("_logprobs", "_text")

    def __init__(self, frame: StreamFrame, text: str, logprobs: str | None) -> None:
        self._consumed = False
        self._frame = frame
        self._text = text
        self._logprobs = logprobs


class ReasoningChunk(TextChunk):
    """A piece of the reasoning."""

    __slots__ = ()

    def _json(self) -> str:
        frame = self._frame
        delta = f'{frame.prefix}"content":null,"reasoning_content":{json_string(self._text)}'
        if self._logprobs is None:
            return delta + frame.suffix
        logprobs = f'{{"reasoning_content":[{self._logprobs}]}}'
        return f'{delta}}},"logprobs":{logprobs},"finish_reason":null}}]{frame.null_usage}'

    def _add_to(self, response: ChatCompletionResponse) -> None:
        response.choices[self._frame.index].reasoning.add(self._text, self._logprobs)


class ContentChunk(TextChunk):
    """A piece of the answer."""

    __slots__ = ()

    def _json(self) -> str:
        frame = self._frame
        delta = f'{frame.prefix}"content":{json_string(self._text)}{frame.null_reasoning}'
        if self._logprobs is None:
            return delta + frame.suffix
        return f'{delta}}},"logprobs":{{"content":[{self._logprobs}]}},"finish_reason":null}}]{frame.null_usage}'

    def _add_to(self, response: ChatCompletionResponse) -> None:
        response.choices[self._frame.index].content.add(self._text, self._logprobs)


class CallChunk(ChatCompletionChunk):
    """A tool call begins."""

    __slots__ = ("_call",)

    def __init__(self, frame: StreamFrame, index: int, call_id: str, name: str) -> None:
        super().__init__(frame)
        self._call = AccumulatedCall(index, call_id, name)

    def _json(self) -> str:
        return f'{self._frame.prefix}"tool_calls":[{self._call.to_json()}]{self._frame.suffix}'

    def _add_to(self, response: ChatCompletionResponse) -> None:
        response.choices[self._frame.index].calls.append(self._call)


class ArgumentsChunk(ChatCompletionChunk):
    """A piece of the arguments of a tool call."""

    __slots__ = ("_index", "_text")

    def __init__(self, frame: StreamFrame, index: int, text: str) -> None:
        super().__init__(frame)
        self._index = index
        self._text = text

    def _json(self) -> str:
        arguments = f'{{"index":{self._index},"function":{{"arguments":{json_string(self._text)}}}}}'
        return f'{self._frame.prefix}"tool_calls":[{arguments}]{self._frame.suffix}'

    def _add_to(self, response: ChatCompletionResponse) -> None:
        response.choices[self._frame.index].calls[self._index].arguments.append(self._text)


class FinalChunk(ChatCompletionChunk):
    """The finish reason, and the usage of all choices once they have all ended."""

    __slots__ = ("_reason", "_usage")

    def __init__(self, frame: StreamFrame, reason: FinishKind, usage: Usage | None) -> None:
        self._consumed = False
        self._frame = frame
        self._reason = reason
        self._usage = usage

    def _json(self) -> str:
        frame = self._frame
        delta = f'{frame.prefix}"content":""{frame.null_reasoning}}}'
        usage = frame.null_usage if self._usage is None else f',"usage":{usage_json(self._usage)}}}'
        return f'{delta},"logprobs":null,"finish_reason":"{self._reason}"}}]{usage}'

    def _add_to(self, response: ChatCompletionResponse) -> None:
        choice = response.choices[self._frame.index]
        choice.content.add("")
        choice.finish_reason = self._reason
        if self._usage is not None:
            response.usage = self._usage


class UsageChunk(ChatCompletionChunk):
    """The usage in a chunk of its own, without choices."""

    __slots__ = ("_usage",)

    def __init__(self, frame: StreamFrame, usage: Usage) -> None:
        super().__init__(frame)
        self._usage = usage

    def _json(self) -> str:
        return f'{self._frame.head}"choices":[],"usage":{usage_json(self._usage)}}}'

    def _add_to(self, response: ChatCompletionResponse) -> None:
        response.usage = self._usage


class ChatCompletionResponse:
    """A whole response: the fold of the chunks of a stream, under an ID, model and creation time of its own.

    `created` is in seconds since the epoch. The usage is that of the chunks; the constructor's counts are those of
    protocols whose chunks bring less.
    """

    __slots__ = (
        "_created",
        "_id",
        "_model",
        "_system_fingerprint",
        "choices",
        "usage",
    )

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
        self._created = count(created)
        count(prompt_tokens)
        count(prompt_cache_hit_tokens)
        self._system_fingerprint: str | None = None
        self.choices: dict[int, AccumulatedChoice] = {}
        self.usage: Usage | None = None

    def accumulate(self, chunk: ChatCompletionChunk) -> None:
        """Consume the chunk and apply its delta. RuntimeError when it has been consumed before."""
        if not isinstance(chunk, ChatCompletionChunk):
            raise TypeError(f"expected a ChatCompletionChunk, not {type(chunk).__name__}")
        chunk.consume_into(self)

    def to_json(self) -> str:
        """The response as far as it has come."""
        usage = "" if self.usage is None else f',"usage":{usage_json(self.usage)}'
        choices = ",".join([choice.to_json() for _, choice in sorted(self.choices.items())])
        return (
            f'{{"id":{json_string(self._id)},"object":"chat.completion","created":{self._created}'
            f',"model":{json_string(self._model)},"choices":[{choices}]{usage}'
            f',"system_fingerprint":{optional_string(self._system_fingerprint)}}}'
        )

    @staticmethod
    def sse_event_name(chunk: ChatCompletionChunk) -> str | None:
        """None: the events have no names."""
        if not isinstance(chunk, ChatCompletionChunk):
            raise TypeError(f"expected a ChatCompletionChunk, not {type(chunk).__name__}")
        return None

    @staticmethod
    def sse_done_data() -> str | None:
        """The data of the message that ends a stream."""
        return "[DONE]"

    def begin(self, index: int, system_fingerprint: str | None) -> AccumulatedChoice:
        """The response has a choice of this index."""
        self._system_fingerprint = system_fingerprint
        if index not in self.choices:
            self.choices[index] = AccumulatedChoice(index)
        return self.choices[index]


def usage_json(usage: Usage) -> str:
    """The usage object; reasoning tokens are left out where they were not counted."""
    reasoning = usage.reasoning_tokens
    details = "" if reasoning is None else f',"completion_tokens_details":{{"reasoning_tokens":{reasoning}}}'
    return (
        f'{{"prompt_tokens":{usage.prompt_tokens},"completion_tokens":{usage.completion_tokens}'
        f',"total_tokens":{usage.prompt_tokens + usage.completion_tokens}'
        f',"prompt_tokens_details":{{"cached_tokens":{usage.prompt_cache_hit_tokens}}}{details}'
        f',"prompt_cache_hit_tokens":{usage.prompt_cache_hit_tokens}'
        f',"prompt_cache_miss_tokens":{usage.prompt_cache_miss_tokens}}}'
    )
