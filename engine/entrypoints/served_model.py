"""Which prompt format a model gets, and what the preparation workers are told of it."""

from __future__ import annotations

from engine.entrypoints.encoding_choice import choose_encoding
from engine.entrypoints.options import OptionError, ServerOptions
from engine.runner.weights.model_files import ModelFiles
from recipe.prepare import PrepareConfig
from recipe.request import ConversionOptions, ModelVersion

_VERSIONS = {
    "deepseek-v4": ModelVersion.DeepseekV4Pro,
    "deepseek-v4.1": ModelVersion.DeepseekV41Flash,
    "chat-template": ModelVersion.DeepseekV4Pro,
}


def served_names(options: ServerOptions, files: ModelFiles) -> list[str]:
    """The names clients may use, the first one being what /v1/models shows first."""
    return options.served_model_name or [files.name]


def prepare_config(options: ServerOptions, files: ModelFiles, context_limit: int) -> PrepareConfig:
    """What a preparation worker is initialised with."""
    encoding = choose_encoding(options, files)
    names = dict.fromkeys(served_names(options, files), _VERSIONS[encoding])
    conversion = ConversionOptions(default_thinking_mode=options.default_thinking and encoding != "chat-template")
    if options.token_cache_mib < 0:
        raise OptionError(f"--token-cache-mib must be 0 or more. Given: {options.token_cache_mib}")
    return PrepareConfig(
        tokenizer_json=files.tokenizer_json,
        encoding=encoding,
        options=conversion.with_model_versions_by_name(names),
        context_limit=context_limit,
        chat_template=files.chat_template,
        special_tokens=files.special_tokens,
        token_cache_mib=options.token_cache_mib,
    )
