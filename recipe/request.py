"""A conversation with the options of its inference and of the parsing of its output: what conversion comes to."""

from __future__ import annotations

from typing import Any

from recipe.argument import U32_MAX, instance, u32
from recipe.conversation import Conversation
from recipe.conversion_options import (
    DEFAULT_MODEL_VERSIONS_BY_NAME,
    ConversionOptions,
    ModelVersion,
    ReasoningContentBehavior,
    ThinkingSupport,
    WebSearchBehavior,
)
from recipe.extensions import Extensions
from recipe.inference_options import InferenceOptions, OutputConstraint, SamplingDefaults
from recipe.max_tokens import MaxTokens
from recipe.stream.parsing_options import ParsingOptions

__all__ = [
    "DEFAULT_MODEL_VERSIONS_BY_NAME",
    "IMAGE_SPECIAL_TOKEN_ID",
    "ConversationRequest",
    "ConversionOptions",
    "Extensions",
    "InferenceOptions",
    "ModelVersion",
    "OutputConstraint",
    "ReasoningContentBehavior",
    "SamplingDefaults",
    "ThinkingSupport",
    "WebSearchBehavior",
]

IMAGE_SPECIAL_TOKEN_ID = 129264
"""The token ID of the image placeholder in the vocabulary of DeepSeek V4.1."""

_CHAT_TEMPLATE = ModelVersion.ChatTemplate
DEFAULT_MAX_TOKENS = 8_192  # without thinking
DEFAULT_THINKING_MAX_TOKENS = 65_536
DEFAULT_MAX_EFFORT_MAX_TOKENS = 131_072  # thinking with effort `max`


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
        self._conversation = instance(conversation, Conversation)
        self._model_version = instance(model_version, ModelVersion)
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
        that sets none gets 8192 without thinking, 131072 with effort `max`, else 65536; with a chat template it gets
        all there is. What the context has left caps it. ConversionError when the prompt and the requested tokens exceed
        the context, or when `min_tokens` exceeds the result; OverflowError for a count that is not a u32.
        """
        return self.max_tokens.resolve(u32(prompt_tokens), u32(context_limit))

    @property
    def max_tokens(self) -> MaxTokens:
        """What the request says of the length of its answer."""
        options = self._inference_options
        return MaxTokens(options.max_tokens, self._default_max_tokens(), options.min_tokens)

    def _default_max_tokens(self) -> int:
        if self._model_version is _CHAT_TEMPLATE:
            return U32_MAX
        if not self._conversation.thinking_mode:
            return DEFAULT_MAX_TOKENS
        if self._conversation.reasoning_effort == "max":
            return DEFAULT_MAX_EFFORT_MAX_TOKENS
        return DEFAULT_THINKING_MAX_TOKENS
