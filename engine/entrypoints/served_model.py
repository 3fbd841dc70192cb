"""Which prompt format a model gets, and what the preparation workers are told of it."""

from __future__ import annotations

import msgspec

from engine.core.sampling_params import SamplingParams
from engine.entrypoints.choices import MAX_CHOICES
from engine.entrypoints.encoding_choice import choose_encoding
from engine.entrypoints.markup_choice import choose_markup
from engine.entrypoints.options import OptionError, ServerOptions
from engine.runner.weights.model_files import ModelFiles
from recipe.encoding.template_thinking import template_thinking
from recipe.markup.output_markup import OutputMarkup
from recipe.prepare import EncodingName, PrepareConfig
from recipe.request import (
    ConversionOptions,
    Extensions,
    ModelVersion,
    ReasoningContentBehavior,
    SamplingDefaults,
    WebSearchBehavior,
)

_VERSIONS = {
    "deepseek-v4": ModelVersion.DeepseekV4Pro,
    "deepseek-v4.1": ModelVersion.DeepseekV41Flash,
    "chat-template": ModelVersion.ChatTemplate,
}
_MISSING_REASONING = {"fill": ReasoningContentBehavior.FillEmpty, "reject": ReasoningContentBehavior.Reject}
_WEB_SEARCH = {"drop": WebSearchBehavior.Drop, "reject": WebSearchBehavior.Reject}
_ANY_NAME = "*"


def served_names(options: ServerOptions, files: ModelFiles) -> list[str]:
    """The names clients may use, in the order of /v1/models: those of the model, then its aliases."""
    aliases = [name for name in options.model_alias if name != _ANY_NAME]
    return list(dict.fromkeys([*(options.served_model_name or [files.name]), *aliases]))


def prepare_config(options: ServerOptions, files: ModelFiles, context_limit: int) -> PrepareConfig:
    """What a preparation worker is initialised with."""
    encoding = choose_encoding(options, files)
    if options.token_cache_mib < 0:
        raise OptionError(f"--token-cache-mib must be 0 or more. Given: {options.token_cache_mib}")
    markup = choose_markup(options, files, encoding)
    return PrepareConfig(
        tokenizer_json=files.tokenizer_json,
        encoding=encoding,
        options=_conversion_options(options, files, encoding, markup),
        context_limit=context_limit,
        chat_template=files.chat_template,
        markup=markup,
        special_tokens=files.special_tokens,
        bos_token=files.special_tokens.get("bos_token", "") if files.add_bos else "",
        token_cache_mib=options.token_cache_mib,
    )


def _conversion_options(
    options: ServerOptions, files: ModelFiles, encoding: EncodingName, markup: OutputMarkup | None
) -> ConversionOptions:
    """How requests are converted: as the options say, with every extension, for what the model can do."""
    version = _VERSIONS[encoding]
    conversion = (
        ConversionOptions(
            default_thinking_mode=options.default_thinking,
            reasoning_content_behavior=_MISSING_REASONING[options.missing_reasoning],
            thinking_max_tokens_upper_bound=options.max_tokens_bound,
            non_thinking_max_tokens_upper_bound=options.max_tokens_bound,
        )
        .with_model_versions_by_name(dict.fromkeys(served_names(options, files), version))
        .with_extensions(Extensions.all(max_n=MAX_CHOICES))
    )
    if options.web_search is not None:
        behavior = _WEB_SEARCH[options.web_search]
        conversion = conversion.with_responses_web_search(behavior).with_messages_web_search(behavior)
    if _ANY_NAME in options.model_alias:
        conversion = conversion.with_any_model(version)
    if files.chat_template is None or markup is None:
        return conversion
    thinking = template_thinking(files.chat_template, markup.reasoning)
    return conversion.with_thinking_support(thinking).with_sampling_defaults(_sampling_defaults(files))


def _sampling_defaults(files: ModelFiles) -> SamplingDefaults:
    """What the model's files say of sampling; `OptionError` for values that cannot be sampled with."""
    try:
        SamplingParams(**files.generation)  # type: ignore[arg-type]  # what is no integer here is refused there
        return msgspec.convert(files.generation, SamplingDefaults)
    except (TypeError, ValueError) as error:
        raise OptionError(f"the sampling defaults of the model are wrong: {error}") from None
