"""How requests are converted: the behaviours to choose from, and the options that hold the choices.

The enums and options follow the reference. Options are immutable; a changed option is a new object (`with_...`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from recipe.argument import flag, instance, text, u32
from recipe.errors import ConversionError
from recipe.extensions import Extensions
from recipe.inference_options import SamplingDefaults
from recipe.prompt import SpecialTokens

MAX_TOKENS_UPPER_BOUND = 393_216  # the default largest accepted `max_tokens`


class _Named(Enum):
    """An enum whose members print as `Class.Member` and convert to their position."""

    __hash__ = object.__hash__  # that of Enum is written in Python

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
    ChatTemplate = 2
    """Any model with a Hugging Face chat template, rendered by `ChatTemplateEncoding`."""


class ThinkingSupport(_Named):
    """Whether a model can think before it answers, and whether it can be told not to."""

    Switchable = 0
    """Requests say which."""
    Never = 1
    """Requests for thinking are answered without."""
    Always = 2
    """Requests to leave it are answered with it."""


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
        "_any_model_version",
        "_default_thinking_mode",
        "_extensions",
        "_messages_web_search",
        "_model_versions_by_name",
        "_non_thinking_max_tokens_upper_bound",
        "_reasoning_content_behavior",
        "_responses_web_search",
        "_sampling_defaults",
        "_special_tokens",
        "_thinking_max_tokens_upper_bound",
        "_thinking_support",
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
        self._reasoning_content_behavior = instance(reasoning_content_behavior, ReasoningContentBehavior)
        self._responses_web_search = instance(responses_web_search, WebSearchBehavior)
        self._messages_web_search = instance(messages_web_search, WebSearchBehavior)
        self._thinking_max_tokens_upper_bound = u32(thinking_max_tokens_upper_bound)
        self._non_thinking_max_tokens_upper_bound = u32(non_thinking_max_tokens_upper_bound)
        self._model_versions_by_name = DEFAULT_MODEL_VERSIONS_BY_NAME
        self._special_tokens = SpecialTokens()
        self._any_model_version: ModelVersion | None = None
        self._extensions = Extensions()
        self._sampling_defaults = SamplingDefaults()
        self._thinking_support = ThinkingSupport.Switchable

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

    @property
    def extensions(self) -> Extensions:
        """What is understood beyond the reference."""
        return self._extensions

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """What models with a chat template sample with where a request says nothing."""
        return self._sampling_defaults

    @property
    def thinking_support(self) -> ThinkingSupport:
        """Whether the model thinks as it is told."""
        return self._thinking_support

    def model_version(self, name: str) -> ModelVersion:
        """The version of the model `name`; ConversionError, listing the names by alphabet, when there is none."""
        version = self._model_versions_by_name.get(name, self._any_model_version)
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
        return self._with("_reasoning_content_behavior", instance(reasoning_content_behavior, ReasoningContentBehavior))

    def with_responses_web_search(self, responses_web_search: WebSearchBehavior) -> ConversionOptions:
        """Options with another behavior for web search in Responses requests."""
        return self._with("_responses_web_search", instance(responses_web_search, WebSearchBehavior))

    def with_messages_web_search(self, messages_web_search: WebSearchBehavior) -> ConversionOptions:
        """Options with another behavior for web search in Messages requests."""
        return self._with("_messages_web_search", instance(messages_web_search, WebSearchBehavior))

    def with_special_tokens(self, special_tokens: SpecialTokens) -> ConversionOptions:
        """Options with other spellings of the special tokens."""
        return self._with("_special_tokens", instance(special_tokens, SpecialTokens))

    def with_model_alias(self, model: str, model_version: ModelVersion) -> ConversionOptions:
        """Options that also accept `model` as a name of `model_version`; an existing name gets the new version."""
        alias = {text("model", model): instance(model_version, ModelVersion)}
        return self._with("_model_versions_by_name", {**self._model_versions_by_name, **alias})

    def with_model_versions_by_name(self, model_versions_by_name: dict[str, ModelVersion]) -> ConversionOptions:
        """Options that accept exactly the names of the mapping."""
        table = {
            text("model_versions_by_name", name): instance(version, ModelVersion)
            for name, version in instance(model_versions_by_name, dict).items()
        }
        return self._with("_model_versions_by_name", table)

    def with_any_model(self, model_version: ModelVersion) -> ConversionOptions:
        """Options that accept every name that is not in the table, for a model of `model_version`."""
        return self._with("_any_model_version", instance(model_version, ModelVersion))

    def with_extensions(self, extensions: Extensions) -> ConversionOptions:
        """Options with other extensions."""
        return self._with("_extensions", instance(extensions, Extensions))

    def with_sampling_defaults(self, sampling_defaults: SamplingDefaults) -> ConversionOptions:
        """Options with other sampling defaults of models with a chat template."""
        return self._with("_sampling_defaults", instance(sampling_defaults, SamplingDefaults))

    def with_thinking_support(self, thinking_support: ThinkingSupport) -> ConversionOptions:
        """Options for a model that can or cannot think."""
        return self._with("_thinking_support", instance(thinking_support, ThinkingSupport))

    def with_thinking_max_tokens_upper_bound(self, thinking_max_tokens_upper_bound: int) -> ConversionOptions:
        """Options with another bound of `max_tokens` in thinking mode."""
        return self._with("_thinking_max_tokens_upper_bound", u32(thinking_max_tokens_upper_bound))

    def with_non_thinking_max_tokens_upper_bound(self, non_thinking_max_tokens_upper_bound: int) -> ConversionOptions:
        """Options with another bound of `max_tokens` outside thinking mode."""
        return self._with("_non_thinking_max_tokens_upper_bound", u32(non_thinking_max_tokens_upper_bound))
