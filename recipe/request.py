"""What conversion takes (`ConversionOptions`) and what it yields (`ConversationRequest`), whatever the protocol.

A `ConversationRequest` is a conversation to render, the parameters of its inference, and the settings for parsing its
output. Values are immutable; a changed option is a new object (`with_...`).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import msgspec

from recipe.argument import flag, text
from recipe.conversation import Conversation
from recipe.errors import ConversionError
from recipe.prompt import SpecialTokens
from recipe.stream.parsing_options import ParsingOptions

_T = TypeVar("_T")

IMAGE_SPECIAL_TOKEN_ID = 129264
"""The token ID of the image placeholder in the vocabulary of DeepSeek V4.1."""

U32_MAX = 2**32 - 1
MAX_TOKENS_UPPER_BOUND = 393_216  # the default largest accepted `max_tokens`
DEFAULT_MAX_TOKENS = 8_192  # without thinking
DEFAULT_THINKING_MAX_TOKENS = 65_536
DEFAULT_MAX_EFFORT_MAX_TOKENS = 131_072  # thinking with effort `max`


class _Named(Enum):
    """An enum whose members print as `Class.Member` and convert to their position."""

    def __int__(self) -> int:
        return int(self.value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class WebSearchBehavior(_Named):
    """What to do with web-search declarations and choices, and with server-tool blocks of Messages."""

    Drop = 0
    """Leave them out."""
    Reject = 1
    """Refuse the request."""


class ReasoningContentBehavior(_Named):
    """What to do with assistant history that lacks its reasoning in thinking mode."""

    FillEmpty = 0
    """Take the missing reasoning as empty."""
    Reject = 1
    """Refuse the request where the reasoning had to be passed back."""


class ModelVersion(_Named):
    """The model version that a conversation targets; it selects the prompt encoding."""

    DeepseekV4Pro = 0
    """DeepSeek V4 Pro, rendered by `DeepseekV4Encoding`."""
    DeepseekV41Flash = 1
    """DeepSeek V4.1 Flash, rendered by `DeepseekV41Encoding`."""


DEFAULT_MODEL_VERSIONS_BY_NAME: Mapping[str, ModelVersion] = {
    "DeepSeek-V4-Pro": ModelVersion.DeepseekV4Pro,
    "DeepSeek-V4.1-Flash": ModelVersion.DeepseekV41Flash,
}


class ConversionOptions:
    """How requests are converted. TypeError for a value of another type, OverflowError for a bound that is not a u32.

    By default thinking is on, missing reasoning is filled with "", Responses drops web search and Messages rejects it,
    the two DeepSeek models are known by their names, and `max_tokens` may be up to 393216.
    """

    __slots__ = (
        "_default_thinking_mode",
        "_messages_web_search",
        "_model_versions_by_name",
        "_non_thinking_max_tokens_upper_bound",
        "_reasoning_content_behavior",
        "_responses_web_search",
        "_special_tokens",
        "_thinking_max_tokens_upper_bound",
    )

    def __init__(
        self,
        *,
        default_thinking_mode: bool = True,
        reasoning_content_behavior: ReasoningContentBehavior = ReasoningContentBehavior.FillEmpty,
        responses_web_search: WebSearchBehavior = WebSearchBehavior.Drop,
        messages_web_search: WebSearchBehavior = WebSearchBehavior.Reject,
        thinking_max_tokens_upper_bound: int = MAX_TOKENS_UPPER_BOUND,
        non_thinking_max_tokens_upper_bound: int = MAX_TOKENS_UPPER_BOUND,
    ) -> None:
        self._default_thinking_mode = flag("default_thinking_mode", default_thinking_mode)
        self._reasoning_content_behavior = _instance(reasoning_content_behavior, ReasoningContentBehavior)
        self._responses_web_search = _instance(responses_web_search, WebSearchBehavior)
        self._messages_web_search = _instance(messages_web_search, WebSearchBehavior)
        self._thinking_max_tokens_upper_bound = _u32(thinking_max_tokens_upper_bound)
        self._non_thinking_max_tokens_upper_bound = _u32(non_thinking_max_tokens_upper_bound)
        self._model_versions_by_name = DEFAULT_MODEL_VERSIONS_BY_NAME
        self._special_tokens = SpecialTokens()

    def _with(self, name: str, value: object) -> ConversionOptions:
        """A copy with one slot replaced."""
        copy = object.__new__(ConversionOptions)
        for slot in self.__slots__:
            setattr(copy, slot, getattr(self, slot))
        setattr(copy, name, value)
        return copy

    @property
    def default_thinking_mode(self) -> bool:
        """Whether a request that says nothing of thinking uses thinking mode."""
        return self._default_thinking_mode

    @property
    def model_versions_by_name(self) -> dict[str, ModelVersion]:
        """A copy of the accepted model names and the version of each; any other name is refused."""
        return dict(self._model_versions_by_name)

    @property
    def thinking_max_tokens_upper_bound(self) -> int:
        """The largest accepted `max_tokens` in thinking mode; Messages lowers a larger one to it."""
        return self._thinking_max_tokens_upper_bound

    @property
    def non_thinking_max_tokens_upper_bound(self) -> int:
        """The largest accepted `max_tokens` outside thinking mode; Messages lowers a larger one to it."""
        return self._non_thinking_max_tokens_upper_bound

    @property
    def reasoning_content_behavior(self) -> ReasoningContentBehavior:
        """What happens to assistant history without its reasoning."""
        return self._reasoning_content_behavior

    @property
    def responses_web_search(self) -> WebSearchBehavior:
        """What happens to web search in Responses requests."""
        return self._responses_web_search

    @property
    def messages_web_search(self) -> WebSearchBehavior:
        """What happens to web search in Messages requests."""
        return self._messages_web_search

    @property
    def special_tokens(self) -> SpecialTokens:
        """The spellings of the special tokens."""
        return self._special_tokens

    def model_version(self, name: str) -> ModelVersion:
        """The version of the model `name`; ConversionError, listing the names by alphabet, when there is none."""
        version = self._model_versions_by_name.get(name)
        if version is None:
            known = ", ".join(sorted(self._model_versions_by_name))
            raise ConversionError(f"The supported API model names are {known}, but you passed {name}.")
        return version

    def max_tokens_upper_bound(self, thinking_mode: bool) -> int:
        """The largest accepted `max_tokens` of a request with thinking on or off."""
        if thinking_mode:
            return self._thinking_max_tokens_upper_bound
        return self._non_thinking_max_tokens_upper_bound

    def with_default_thinking_mode(self, default_thinking_mode: bool) -> ConversionOptions:
        """Options with another default thinking mode."""
        return self._with("_default_thinking_mode", flag("default_thinking_mode", default_thinking_mode))

    def with_reasoning_content_behavior(
        self, reasoning_content_behavior: ReasoningContentBehavior
    ) -> ConversionOptions:
        """Options with another behavior for missing reasoning."""
        return self._with(
            "_reasoning_content_behavior", _instance(reasoning_content_behavior, ReasoningContentBehavior)
        )

    def with_responses_web_search(self, responses_web_search: WebSearchBehavior) -> ConversionOptions:
        """Options with another behavior for web search in Responses requests."""
        return self._with("_responses_web_search", _instance(responses_web_search, WebSearchBehavior))

    def with_messages_web_search(self, messages_web_search: WebSearchBehavior) -> ConversionOptions:
        """Options with another behavior for web search in Messages requests."""
        return self._with("_messages_web_search", _instance(messages_web_search, WebSearchBehavior))

    def with_special_tokens(self, special_tokens: SpecialTokens) -> ConversionOptions:
        """Options with other spellings of the special tokens."""
        return self._with("_special_tokens", _instance(special_tokens, SpecialTokens))

    def with_model_alias(self, model: str, model_version: ModelVersion) -> ConversionOptions:
        """Options that also accept `model` as a name of `model_version`; an existing name gets the new version."""
        alias = {text("model", model): _instance(model_version, ModelVersion)}
        return self._with("_model_versions_by_name", {**self._model_versions_by_name, **alias})

    def with_model_versions_by_name(self, model_versions_by_name: dict[str, ModelVersion]) -> ConversionOptions:
        """Options that accept exactly the names of the mapping."""
        table = {
            text("model_versions_by_name", name): _instance(version, ModelVersion)
            for name, version in _instance(model_versions_by_name, dict).items()
        }
        return self._with("_model_versions_by_name", table)

    def with_thinking_max_tokens_upper_bound(self, thinking_max_tokens_upper_bound: int) -> ConversionOptions:
        """Options with another bound of `max_tokens` in thinking mode."""
        return self._with("_thinking_max_tokens_upper_bound", _u32(thinking_max_tokens_upper_bound))

    def with_non_thinking_max_tokens_upper_bound(self, non_thinking_max_tokens_upper_bound: int) -> ConversionOptions:
        """Options with another bound of `max_tokens` outside thinking mode."""
        return self._with("_non_thinking_max_tokens_upper_bound", _u32(non_thinking_max_tokens_upper_bound))


class OutputConstraint(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What constrained decoding would enforce on the output; describing it is all that happens here.

    `kind` is `json`, `regex`, `tool_call` or `tool_call_required`; servers may also use `choice` and `grammar`. `schema`
    is the schema as compact JSON, the regular expression, the tools as a compact JSON array of Chat Completions function
    tools (deferred ones with `"defer_loading":true`), a JSON array of strings, the grammar, or "" for any JSON value.

    Conversion leaves the rest to whoever knows the model. `tool_markup` names how it writes tool calls. `begins_after`
    is the marker that ends the reasoning which the prompt leaves open: the constraint holds behind it, else at once.
    `in_tool_block` says that the prompt opens the block of calls, `single_call` that one call is the most.
    """

    kind: str
    schema: str
    tool_markup: str = ""
    begins_after: str = ""
    in_tool_block: bool = False
    single_call: bool = False


class InferenceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling parameters of a request; None where it says nothing and the engine's default applies.

    Conversion always resolves `temperature` and `top_p`. `max_tokens` is as requested: see
    `ConversationRequest.resolve_max_tokens`. `seed` is in [0, 2^63), `top_logprobs` in [0, 20].
    """

    temperature: float | None
    top_p: float | None
    max_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    seed: int | None = None
    output_constraint: OutputConstraint | None = None


class ConversationRequest:
    """A conversation with the options of its inference and of the parsing of its output.

    Constructed directly it has default options and is not streamed; conversion fills everything. `protocol_state` is
    what the protocol that converted the request needs for its responses.
    """

    __slots__ = (
        "_conversation",
        "_inference_options",
        "_model_version",
        "_parsing_options",
        "_stream",
        "protocol_state",
    )

    def __init__(self, conversation: Conversation, model_version: ModelVersion) -> None:
        self._conversation = _instance(conversation, Conversation)
        self._model_version = _instance(model_version, ModelVersion)
        self._inference_options = InferenceOptions(temperature=None, top_p=None)
        self._parsing_options = ParsingOptions()
        self._stream = False
        self.protocol_state: Any = None

    @classmethod
    def converted(
        cls,
        conversation: Conversation,
        model_version: ModelVersion,
        inference_options: InferenceOptions,
        parsing_options: ParsingOptions,
        stream: bool,
        protocol_state: Any = None,
    ) -> ConversationRequest:
        """The outcome of a conversion, from parts known to be of the right types."""
        request = cls.__new__(cls)
        request._conversation = conversation
        request._model_version = model_version
        request._inference_options = inference_options
        request._parsing_options = parsing_options
        request._stream = stream
        request.protocol_state = protocol_state
        return request

    @property
    def conversation(self) -> Conversation:
        """The conversation to render."""
        return self._conversation

    @property
    def inference_options(self) -> InferenceOptions:
        """The parameters of the inference."""
        return self._inference_options

    @property
    def parsing_options(self) -> ParsingOptions:
        """The settings the output is to be parsed with."""
        return self._parsing_options

    @property
    def model_version(self) -> ModelVersion:
        """The version that the requested model name stands for."""
        return self._model_version

    @property
    def stream(self) -> bool:
        """Whether the request asks for a streamed response."""
        return self._stream

    def resolve_max_tokens(self, prompt_tokens: int, context_limit: int) -> int:
        """The number of tokens to generate at most, at least 1.

        `prompt_tokens` counts each image at its real size; `context_limit` is what the model's context holds. A request
        that sets none gets 8192 without thinking, 131072 with effort `max`, else 65536; what the context has left caps
        both. ConversionError when the prompt and the requested tokens exceed the context, OverflowError for a count
        that is not a u32.
        """
        prompt_tokens, context_limit = _u32(prompt_tokens), _u32(context_limit)
        requested = self._inference_options.max_tokens
        total = min(prompt_tokens + (requested or 0), U32_MAX)
        if total > context_limit:
            raise ConversionError(
                f"This model's maximum context length is {context_limit} tokens. However, you requested {total} tokens "
                f"({prompt_tokens} in the messages, {requested or 0} in the completion). "
                "Please reduce the length of the messages or completion."
            )
        wanted = self._default_max_tokens() if requested is None else requested
        return max(1, min(wanted, context_limit - prompt_tokens))

    def _default_max_tokens(self) -> int:
        if not self._conversation.thinking_mode:
            return DEFAULT_MAX_TOKENS
        if self._conversation.reasoning_effort == "max":
            return DEFAULT_MAX_EFFORT_MAX_TOKENS
        return DEFAULT_THINKING_MAX_TOKENS


def _instance(value: _T, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, not {type(value).__name__}")
    return value


def _u32(value: int) -> int:
    """The integer; TypeError for another type, OverflowError outside [0, 2^32)."""
    value = operator.index(value)
    if not -(2**63) <= value < 2**63:
        raise OverflowError("Python int too large to convert to C long")
    if not 0 <= value <= U32_MAX:
        raise OverflowError("out of range integral type conversion attempted")
    return value
