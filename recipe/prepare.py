"""What runs in the preparation workers: request bytes in, token IDs and everything the answer needs out.

A worker is initialised once (`initialize`) and keeps its `Preparer`: conversion options, prompt encoding, tokenizer.
The result crosses a process border, so it is small: token IDs as bytes, the parsing options, and the still unused
chunk generator of the response.
"""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from recipe.bad_words import bad_word_token_ids
from recipe.conversation import Conversation, ImageSource
from recipe.encoding.chat_template import ChatTemplateEncoding
from recipe.encoding.deepseek_v4 import DeepseekV4Encoding
from recipe.encoding.deepseek_v41 import DeepseekV41Encoding
from recipe.encoding.tokenizer import Tokenizer
from recipe.errors import ConversionError
from recipe.extensions import Extensions
from recipe.markup.detection import detect_markup
from recipe.markup.output_markup import OutputMarkup
from recipe.markup.prompt_end import opens_reasoning
from recipe.max_tokens import MaxTokens
from recipe.prompt import RenderedPrompt, SpecialToken
from recipe.protocol.body import RequestBody
from recipe.protocol.chat_completions.convert import ChatCompletionRequest
from recipe.protocol.messages.convert import MessagesRequest
from recipe.protocol.responses.convert import ResponsesRequest
from recipe.request import (
    ConversationRequest,
    ConversionOptions,
    InferenceOptions,
    OutputConstraint,
    ThinkingSupport,
)
from recipe.stream.parsing_options import ParsingOptions, ThinkingInitialStage

EncodingName = Literal["deepseek-v4", "deepseek-v4.1", "chat-template"]

_REQUESTS: dict[str, Any] = {
    "chat_completions": ChatCompletionRequest,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
}

TOKEN_ID_BYTES = 4


class PromptEncoding(Protocol):
    """What a preparer needs of an encoding."""

    def encode_packed(self, conversation: Conversation) -> bytes: ...

    def render_conversation(self, conversation: Conversation) -> RenderedPrompt: ...

    def constant_texts(self) -> set[str]: ...


@dataclass(frozen=True, slots=True)
class PrepareConfig:
    """Everything a worker needs to know of the model. `context_limit` is in tokens.

    `markup` is how a model with a chat template marks its output; None leaves that to be detected. `bos_token` is what
    text that is no conversation begins with; "" for nothing.
    """

    tokenizer_json: str
    encoding: EncodingName
    options: ConversionOptions
    context_limit: int
    chat_template: str | None = None
    markup: OutputMarkup | None = None
    bos_token: str = ""
    token_cache_mib: int = 64
    special_tokens: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class PreparedRequest:
    """One request, ready for the engine. `token_ids` holds native 32-bit unsigned integers.

    With `image_sources`, `max_tokens` can only be resolved when the images have been fetched and counted. `known_texts`
    of its prompt were in the token cache, `new_texts` were not.
    """

    token_ids: bytes
    model: str
    stream: bool
    max_tokens: int | MaxTokens
    inference_options: InferenceOptions
    parsing_options: ParsingOptions
    generator: Any
    image_sources: Sequence[ImageSource] = ()
    prepare_s: float = 0.0
    known_texts: int = 0
    new_texts: int = 0

    @property
    def resolved_max_tokens(self) -> int:
        """`max_tokens`, once it is known. Raises ValueError before the images have been counted."""
        if isinstance(self.max_tokens, int):
            return self.max_tokens
        raise ValueError("max_tokens depends on images that have not been counted")


@dataclass(slots=True)
class CountedPrompt:
    """How many tokens a prompt holds that is not run, with one for each of its images."""

    num_tokens: int
    image_sources: Sequence[ImageSource] = ()


@dataclass(slots=True)
class RejectedRequest:
    """The client's mistake: an HTTP status of 4xx and what to change."""

    status: int
    message: str


class PreparationFault(Exception):
    """A failure of ours inside a worker, with the traceback as text."""


@dataclass(slots=True)
class CallOutcome:
    """What one call in a worker came to, on its way back."""

    value: Any = None
    fault: str | None = None

    def settle(self, future: Future[Any]) -> None:
        """Hand the outcome to whoever still waits for it."""
        if future.done():
            return
        if self.fault is None:
            future.set_result(self.value)
        else:
            future.set_exception(PreparationFault(self.fault))


class Preparer:
    """Turns request bodies into `PreparedRequest`s for one model. `tokenizer` is that of `config`, if it is loaded."""

    def __init__(self, config: PrepareConfig, tokenizer: Tokenizer | None = None) -> None:
        self.config = config
        self.tokenizer = tokenizer or Tokenizer.from_str(config.tokenizer_json)
        self.encoding = make_encoding(config, self.tokenizer)
        self._markup = _markup(config, self.tokenizer)
        self._reads_extensions = config.options.extensions != Extensions()

    def prepare(self, protocol: str, body: bytes, response_id: str) -> PreparedRequest | RejectedRequest:
        started = time.perf_counter()
        cache = self.tokenizer.prompt_tokenizer.cache
        hits, misses = cache.hits, cache.misses
        try:
            request = self._request(protocol, body)
            model = request.model
            converted = request.convert(self.config.options)
            conversation = converted.conversation
            token_ids = self.encoding.encode_packed(conversation)
            image_sources = self._image_sources(conversation)
            limit = converted.max_tokens
            max_tokens: int | MaxTokens = limit
            if not image_sources:
                max_tokens = limit.resolve(len(token_ids) // TOKEN_ID_BYTES, self.config.context_limit)
        except ConversionError as error:
            return RejectedRequest(error.status_code, str(error))
        except ValueError as error:
            return RejectedRequest(400, str(error))
        parsing = converted.parsing_options
        self._complete(parsing, converted.inference_options.output_constraint, token_ids)
        generator = _REQUESTS[protocol].chunk_generator(converted, response_id, model)
        prepared = PreparedRequest(
            token_ids,
            model,
            converted.stream,
            max_tokens,
            self._inference_options(converted.inference_options, parsing),
            parsing,
            generator,
            image_sources,
        )
        prepared.known_texts, prepared.new_texts = cache.hits - hits, cache.misses - misses
        prepared.prepare_s = time.perf_counter() - started
        return prepared

    def _image_sources(self, conversation: Conversation) -> Sequence[ImageSource]:
        """The images of a prompt in the order of their placeholders."""
        for message in conversation.messages:
            if message.image_sources:
                break
        else:
            return ()
        return self.encoding.render_conversation(conversation).image_sources

    def count_tokens(self, protocol: str, body: bytes) -> CountedPrompt | RejectedRequest:
        """How many tokens the prompt of a request holds; the context may be too small for it."""
        try:
            conversation = self._request(protocol, body).convert(self.config.options).conversation
            num_tokens = len(self.encoding.encode_packed(conversation)) // TOKEN_ID_BYTES
            return CountedPrompt(num_tokens, self._image_sources(conversation))
        except ConversionError as error:
            return RejectedRequest(error.status_code, str(error))
        except ValueError as error:
            return RejectedRequest(400, str(error))

    def conversation(self, protocol: str, body: dict[str, Any]) -> Conversation:
        """The conversation of a request that is not run. Raises ValueError or ConversionError."""
        converted: ConversationRequest = self._request(protocol, body).convert(self.config.options)
        return converted.conversation

    def _request(self, protocol: str, body: RequestBody) -> Any:
        return _REQUESTS[protocol](body, extended=self._reads_extensions)

    def _complete(self, parsing: ParsingOptions, constraint: OutputConstraint | None, token_ids: bytes) -> None:
        """Tell the parser what only the model and the prompt tell: the markup, and whether reasoning is open."""
        if constraint is not None and constraint.single_call:
            parsing.single_call = True
        markup = self._markup
        if markup is None:
            return
        parsing.markup = markup
        parsing.prompt_opens_reasoning = opens_reasoning(token_ids, self.tokenizer, markup)
        if parsing.prompt_opens_reasoning and parsing.thinking_initial_stage is None:
            parsing.thinking_initial_stage = ThinkingInitialStage.ReasoningStart

    def _reasoning_end(self, parsing: ParsingOptions) -> str:
        """The marker behind which a constraint holds, "" where it holds at once.

        It waits for reasoning that is open, or that the model opens when it is told to.
        """
        stage, markup = parsing.thinking_initial_stage, parsing.markup
        if stage is None or not stage.starts_in_reasoning():
            return ""
        if markup is None:
            return parsing.special_tokens.token(SpecialToken.ThinkingEnd)
        is_open = parsing.prompt_opens_reasoning or stage is ThinkingInitialStage.ReasoningContinuation
        is_told = self.config.options.thinking_support is ThinkingSupport.Switchable
        return markup.reasoning.end if markup.reasoning is not None and (is_open or is_told) else ""

    def _inference_options(self, options: InferenceOptions, parsing: ParsingOptions) -> InferenceOptions:
        """The options, with bad words and the constraint's beginning and markup as this model and prompt have them."""
        if options.bad_words:
            options = self.with_bad_words(options)
        if options.output_constraint is None:
            return options
        markup = parsing.markup
        constraint = msgspec.structs.replace(
            options.output_constraint,
            tool_markup=self.config.encoding if markup is None else markup.tools,
            begins_after=self._reasoning_end(parsing),
            reasoning_start=_reasoning_start(parsing),
            in_tool_block=parsing.starts_in_tool_calls,
        )
        return msgspec.structs.replace(options, output_constraint=constraint)

    def with_bad_words(self, options: InferenceOptions) -> InferenceOptions:
        """`options` with its bad words as this model's tokens."""
        if not options.bad_words:
            return options
        return msgspec.structs.replace(
            options, bad_words_token_ids=bad_word_token_ids(options.bad_words, self.tokenizer)
        )


def _reasoning_start(parsing: ParsingOptions) -> str:
    """The marker with which the model itself may open its reasoning, "" where the prompt has opened it."""
    markup, stage = parsing.markup, parsing.thinking_initial_stage
    is_open = parsing.prompt_opens_reasoning or stage is ThinkingInitialStage.ReasoningContinuation
    return "" if markup is None or markup.reasoning is None or is_open else markup.reasoning.start


def make_encoding(config: PrepareConfig, tokenizer: Tokenizer) -> PromptEncoding:
    """The prompt encoding that `config` names, with its tokenizer and that one's cache."""
    encoding = _encoding(config, tokenizer)
    tokenizer.prompt_tokenizer.cache.limit(config.token_cache_mib << 20)
    tokenizer.prompt_tokenizer.keep_always(encoding.constant_texts())
    return encoding


def _encoding(config: PrepareConfig, tokenizer: Tokenizer) -> PromptEncoding:
    if config.encoding == "deepseek-v4":
        return DeepseekV4Encoding().with_tokenizer(tokenizer)
    if config.encoding == "deepseek-v4.1":
        return DeepseekV41Encoding().with_tokenizer(tokenizer)
    if config.chat_template is None:
        raise ValueError("the model has no chat template; give one with --chat-template FILE")
    markup = _markup(config, tokenizer)
    return ChatTemplateEncoding(
        config.chat_template,
        tokenizer,
        special_tokens=config.special_tokens,
        tells_tools=markup is not None and markup.tools == "hermes",
    )


def _markup(config: PrepareConfig, tokenizer: Tokenizer) -> OutputMarkup | None:
    """How the model marks its output; None where that is a part of the encoding."""
    if config.markup is None and config.encoding == "chat-template":
        return detect_markup(config.chat_template or "", set(tokenizer.added_spellings.values()))
    return config.markup


_preparer: Preparer | None = None


def initialize(config: PrepareConfig) -> None:
    """Run once in a worker process: load the tokenizer, leave signals to the parent, die with it."""
    global _preparer
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # waking threads takes milliseconds on a busy machine
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _preparer = Preparer(config)
    gc.collect()
    gc.freeze()  # what is there now stays; collections need not look at it again


def worker_preparer() -> Preparer:
    """The `Preparer` of this process."""
    if _preparer is None:
        raise RuntimeError("this worker was not initialised")
    return _preparer


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def prepare(protocol: str, body: bytes, response_id: str) -> PreparedRequest | RejectedRequest:
    """Prepare one request with this process's `Preparer`."""
    return worker_preparer().prepare(protocol, body, response_id)


def count_tokens(protocol: str, body: bytes) -> CountedPrompt | RejectedRequest:
    """The prompt tokens of a request that is not run."""
    return worker_preparer().count_tokens(protocol, body)


def run_batch(calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> list[CallOutcome]:
    """Run `calls` in order; a failing call leaves the others alone."""
    return [_run_call(function, arguments) for function, arguments in calls]


def _run_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> CallOutcome:
    try:
        return CallOutcome(function(*arguments))
    except Exception:
        return CallOutcome(fault=traceback.format_exc(limit=20))
