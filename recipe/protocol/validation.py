"""Rules for the inference parameters: what is accepted, in a fixed order, and what the accepted becomes."""

from __future__ import annotations

from struct import pack, unpack

import msgspec

from recipe.errors import ConversionError
from recipe.protocol.thinking import Thinking
from recipe.request import ConversionOptions, InferenceOptions, ModelVersion, OutputConstraint, SamplingDefaults

MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20
_CHAT_TEMPLATE, _V41_FLASH = ModelVersion.ChatTemplate, ModelVersion.DeepseekV41Flash
THINKING_TOP_P = 0.95  # the smallest of V4.1, the fixed one of V4 with tools


class RequestedInference(msgspec.Struct, kw_only=True):
    """The inference parameters as a request has them, whatever the protocol; None is missing."""

    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_tokens: int | None = None
    seed: int | None = None


def f32(value: float) -> float:
    """The nearest single-precision number, infinite beyond the range."""
    try:
        rounded: float = unpack("f", pack("f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return rounded


def check_stop_strings(stop: str | list[str] | None) -> list[str]:
    """The stop strings; ConversionError for an empty one or more than 16."""
    if stop is None:
        return []
    if isinstance(stop, str):
        _check_stop_string(stop, "stop")
        return [stop]
    if len(stop) > MAX_STOP_STRINGS:
        raise ConversionError(f"Stop string array too long: {len(stop)}")
    for index, text in enumerate(stop):
        _check_stop_string(text, f"stop[{index}]")
    return stop


def _check_stop_string(text: str, field: str) -> None:
    if not text:
        raise empty_string(field)


def empty_string(field: str) -> ConversionError:
    """The error of a string that must not be empty."""
    return ConversionError(
        f"Invalid '{field}': empty string. Expected a string with minimum length 1, but got an empty string instead."
    )


def resolve_inference(
    requested: RequestedInference,
    options: ConversionOptions,
    version: ModelVersion,
    thinking: Thinking,
    *,
    has_tools: bool,
    constraint: OutputConstraint | None,
) -> InferenceOptions:
    """The checked parameters with the sampling defaults of the model; ConversionError for the first bad one.

    `has_tools` says whether the conversation ends up with tools.
    """
    if requested.n is not None:
        _check_n(requested.n, options.extensions.max_n)
    _check_sampling(requested)
    if requested.top_logprobs is not None:
        _check_top_logprobs(requested.top_logprobs, has_logprobs=bool(requested.logprobs))
    _check_integers(requested, options.max_tokens_upper_bound(thinking.enabled))
    temperature, top_p = _sampling(version, thinking.enabled, has_tools, requested, options.sampling_defaults)
    return InferenceOptions(
        temperature=temperature,
        top_p=top_p,
        max_tokens=requested.max_tokens,
        logprobs=bool(requested.logprobs),
        top_logprobs=requested.top_logprobs,
        seed=requested.seed,
        output_constraint=constraint,
        n=requested.n or 1,
    )


def _check_n(number: int, most: int) -> None:
    if 1 <= number <= most:
        return
    if most == 1:
        raise ConversionError("Invalid n value (currently only n = 1 is supported)")
    raise out_of_range("n", f"[1, {most}]")


def _check_sampling(requested: RequestedInference) -> None:
    if requested.presence_penalty is not None and not -2 <= f32(requested.presence_penalty) <= 2:
        raise out_of_range("presence_penalty", "[-2, 2]")
    if requested.frequency_penalty is not None and not -2 <= f32(requested.frequency_penalty) <= 2:
        raise out_of_range("frequency_penalty", "[-2, 2]")
    if requested.temperature is not None and not 0 <= f32(requested.temperature) <= 2:
        raise out_of_range("temperature", "[0, 2]")
    if requested.top_p is not None and not 0 < f32(requested.top_p) <= 1:
        raise out_of_range("top_p", "(0, 1.0]")


def _check_top_logprobs(number: int, *, has_logprobs: bool) -> None:
    if not has_logprobs:
        raise ConversionError(
            "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is used."
        )
    if number > MAX_TOP_LOGPROBS:
        raise ConversionError(
            f"Invalid top_logprobs value, the valid range of top_logprobs is [0, {MAX_TOP_LOGPROBS}]."
        )


def _check_integers(requested: RequestedInference, max_tokens_bound: int) -> None:
    if requested.max_tokens is not None and not 1 <= requested.max_tokens <= max_tokens_bound:
        raise out_of_range("max_tokens", f"[1, {max_tokens_bound}]")
    if requested.seed is not None and requested.seed >= 2**63:
        raise out_of_range("seed", "[0, 2^63)")


def out_of_range(name: str, valid: str) -> ConversionError:
    """The error of a parameter outside its range."""
    return ConversionError(f"Invalid {name} value, the valid range of {name} is {valid}")


def _sampling(
    version: ModelVersion, thinking: bool, has_tools: bool, requested: RequestedInference, defaults: SamplingDefaults
) -> tuple[float, float]:
    """Temperature and `top_p`: as requested with a chat template, else within what the DeepSeek models allow."""
    temperature = None if requested.temperature is None else f32(requested.temperature)
    top_p = None if requested.top_p is None else f32(requested.top_p)
    if version is _CHAT_TEMPLATE:
        return (
            defaults.temperature if temperature is None else temperature,
            defaults.top_p if top_p is None else top_p,
        )
    return 1.0 if thinking or temperature is None else temperature, _deepseek_top_p(version, thinking, has_tools, top_p)


def _deepseek_top_p(version: ModelVersion, thinking: bool, has_tools: bool, requested: float | None) -> float:
    wanted = 1.0 if requested is None else requested
    if version is _V41_FLASH:
        return max(wanted, f32(THINKING_TOP_P)) if thinking else 1.0
    if thinking:
        return f32(THINKING_TOP_P) if has_tools else 1.0
    return wanted
