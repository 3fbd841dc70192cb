"""Sampling beyond the three protocols: the extension fields of a request, checked, over the defaults of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from recipe.errors import ConversionError
from recipe.protocol.extension_fields import NO_FIELDS, ExtensionFields
from recipe.request import ConversionOptions, InferenceOptions, ModelVersion

MAX_TOKEN_ID = 2**32 - 1
MAX_SEED = 2**63 - 1
MAX_BIASED_TOKENS = 1024
MAX_STOP_TOKENS = 128
MAX_BAD_WORDS = 128

_CHAT_TEMPLATE = ModelVersion.ChatTemplate
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "presence_penalty": (lambda value: -2 <= value <= 2, "[-2, 2]"),
    "frequency_penalty": (lambda value: -2 <= value <= 2, "[-2, 2]"),
    "repetition_penalty": (lambda value: value > 0, "(0, inf)"),
    "min_p": (lambda value: 0 <= value <= 1, "[0, 1]"),
    "seed": (lambda value: value <= MAX_SEED, "[0, 2^63)"),
}
_MODEL_DEFAULTS = ("top_k", "min_p", "repetition_penalty")
_AS_THEY_ARE = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_p",
    "seed",
    "min_tokens",
    "ignore_eos",
)


def with_extensions(
    inference: InferenceOptions, fields: ExtensionFields, options: ConversionOptions, version: ModelVersion
) -> InferenceOptions:
    """`inference` with what extension fields and the model's defaults add; ConversionError for the first bad field.

    Without extensions, and for the DeepSeek models, which have no such defaults, nothing is added.
    """
    if fields is NO_FIELDS and version is not _CHAT_TEMPLATE:
        return inference
    added: dict[str, Any] = {}
    if version is _CHAT_TEMPLATE:
        added = {name: getattr(options.sampling_defaults, name) for name in _MODEL_DEFAULTS}
    if fields is not NO_FIELDS and options.extensions.sampling:
        added |= _sampling(fields)
    if fields is not NO_FIELDS and options.extensions.scheduling:
        added |= _scheduling(fields)
    return msgspec.structs.replace(inference, **added) if added else inference


def _sampling(fields: ExtensionFields) -> dict[str, Any]:
    for name, (accepts, valid) in _RANGES.items():
        value = getattr(fields, name)
        if value is not None and not accepts(value):
            raise _invalid(name, f"the valid range of {name} is {valid}")
    added = {name: value for name in _AS_THEY_ARE if (value := getattr(fields, name)) is not None}
    if fields.top_k is not None:
        added["top_k"] = max(fields.top_k, 0)  # -1 is all, too
    if fields.logit_bias is not None:
        added["logit_bias"] = _logit_bias(fields.logit_bias)
    if fields.stop_token_ids is not None:
        _check_length("stop_token_ids", fields.stop_token_ids, MAX_STOP_TOKENS)
        added["stop_token_ids"] = fields.stop_token_ids
    if fields.bad_words is not None:
        _check_length("bad_words", fields.bad_words, MAX_BAD_WORDS)
        if not all(fields.bad_words):
            raise _invalid("bad_words", "a word must not be empty")
        added["bad_words"] = fields.bad_words
    return added


def _scheduling(fields: ExtensionFields) -> dict[str, Any]:
    if fields.cache_salt == "":
        raise _invalid("cache_salt", "it must not be empty")
    named = {"priority": fields.priority, "cache_salt": fields.cache_salt}
    return {name: value for name, value in named.items() if value is not None}


def _logit_bias(bias: dict[str, float]) -> dict[int, float]:
    _check_length("logit_bias", bias, MAX_BIASED_TOKENS)
    for token, value in bias.items():
        if not (token.isascii() and token.isdecimal() and int(token[:11]) <= MAX_TOKEN_ID):
            raise _invalid("logit_bias", "its keys must be token IDs")
        if not -100 <= value <= 100:
            raise _invalid("logit_bias", "the valid range of a bias is [-100, 100]")
    return {int(token): value for token, value in bias.items()}


def _check_length(name: str, values: Sequence[Any] | dict[str, float], most: int) -> None:
    if len(values) > most:
        raise _invalid(name, f"it may have {most} entries at most")


def _invalid(name: str, problem: str) -> ConversionError:
    return ConversionError(f"Invalid {name} value, {problem}")
