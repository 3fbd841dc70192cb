"""Inference parameters: the order of the checks, single precision, and the sampling defaults of the models."""

from typing import Any

import pytest

from recipe.errors import ConversionError
from recipe.protocol.thinking import Thinking
from recipe.protocol.validation import RequestedInference, check_stop_strings, f32, resolve_inference
from recipe.request import ConversionOptions, InferenceOptions, ModelVersion

ON, OFF = Thinking(True, "high"), Thinking(False, None)
V4, V41 = ModelVersion.DeepseekV4Pro, ModelVersion.DeepseekV41Flash


def resolve(
    thinking: Thinking = OFF, version: ModelVersion = V41, has_tools: bool = False, **requested: Any
) -> InferenceOptions:
    options = ConversionOptions(thinking_max_tokens_upper_bound=100, non_thinking_max_tokens_upper_bound=50)
    return resolve_inference(
        RequestedInference(**requested), options, version, thinking, has_tools=has_tools, constraint=None
    )


# One bad value for each check, in the order of the checks.
BAD: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "Invalid n value (currently only n = 1 is supported)"),
    ({"presence_penalty": 2.1}, "Invalid presence_penalty value, the valid range of presence_penalty is [-2, 2]"),
    ({"frequency_penalty": -2.1}, "Invalid frequency_penalty value, the valid range of frequency_penalty is [-2, 2]"),
    ({"temperature": 2.1}, "Invalid temperature value, the valid range of temperature is [0, 2]"),
    ({"top_p": 0}, "Invalid top_p value, the valid range of top_p is (0, 1.0]"),
    (
        {"top_logprobs": 21},
        "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is used.",
    ),
    ({"max_tokens": 0}, "Invalid max_tokens value, the valid range of max_tokens is [1, 50]"),
    ({"seed": 2**63}, "Invalid seed value, the valid range of seed is [0, 2^63)"),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_the_first_bad_parameter_is_told(index: int) -> None:
    requested: dict[str, Any] = {}
    for values, _ in BAD[index:]:
        requested |= values
    with pytest.raises(ConversionError) as caught:
        resolve(**requested)
    assert str(caught.value) == BAD[index][1]


def test_more_than_twenty_alternatives_are_too_many() -> None:
    assert resolve(logprobs=True, top_logprobs=20).top_logprobs == 20
    with pytest.raises(ConversionError, match=r"the valid range of top_logprobs is \[0, 20\]\."):
        resolve(logprobs=True, top_logprobs=21)


def test_the_bound_of_max_tokens_follows_the_thinking_mode() -> None:
    assert resolve(ON, max_tokens=100).max_tokens == 100
    with pytest.raises(ConversionError, match=r"is \[1, 50\]"):
        resolve(OFF, max_tokens=51)


@pytest.mark.parametrize(
    "requested", [{"temperature": 0}, {"temperature": 2}, {"top_p": 1}, {"seed": 2**63 - 1}, {"presence_penalty": -2}]
)
def test_the_ends_of_a_range_belong_to_it(requested: dict[str, Any]) -> None:
    resolve(**requested)


def test_numbers_are_rounded_to_single_precision() -> None:
    assert resolve(version=V4, temperature=0.3, top_p=0.95).temperature == 0.30000001192092896
    assert resolve(temperature=2.00000001).temperature == 2.0
    assert f32(1e39) == float("inf") and f32(-1e39) == float("-inf")
    with pytest.raises(ConversionError):
        resolve(top_p=1e-46)  # rounds to zero


@pytest.mark.parametrize(
    ("version", "thinking", "has_tools", "top_p"),
    [
        (V41, ON, False, [1.0, 0.949999988079071, 0.9800000190734863]),
        (V41, OFF, False, [1.0, 1.0, 1.0]),
        (V4, ON, False, [1.0, 1.0, 1.0]),
        (V4, ON, True, [0.949999988079071] * 3),
        (V4, OFF, True, [1.0, 0.5, 0.9800000190734863]),
    ],
)
def test_each_model_has_its_own_top_p(
    version: ModelVersion, thinking: Thinking, has_tools: bool, top_p: list[float]
) -> None:
    assert [resolve(thinking, version, has_tools, top_p=p).top_p for p in (None, 0.5, 0.98)] == top_p


def test_thinking_samples_at_temperature_one() -> None:
    assert resolve(ON, temperature=0.5).temperature == 1.0
    assert resolve(OFF, temperature=0.5).temperature == 0.5
    assert resolve(OFF).temperature == 1.0


def test_stop_strings_are_a_list_of_at_most_sixteen() -> None:
    assert check_stop_strings(None) == []
    assert check_stop_strings("a") == ["a"]
    assert check_stop_strings(["a"] * 16) == ["a"] * 16
    with pytest.raises(ConversionError, match="Stop string array too long: 17"):
        check_stop_strings(["a"] * 17)


@pytest.mark.parametrize(("stop", "field"), [("", "stop"), (["a", ""], r"stop\[1\]")])
def test_an_empty_stop_string_is_refused_with_its_place(stop: str | list[str], field: str) -> None:
    with pytest.raises(ConversionError, match=f"^Invalid '{field}': empty string"):
        check_stop_strings(stop)
