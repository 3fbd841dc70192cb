from __future__ import annotations

from typing import Any

import pytest

from engine.core.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", True), ("min_tokens", -1), ("min_tokens", 17),
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")), ("temperature", "1"),
        ("top_p", 0), ("top_p", 1.01), ("top_k", -1), ("min_p", -0.1), ("min_p", 1.1), ("seed", -1), ("seed", 2**63),
        ("repetition_penalty", 0), ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("logprobs", 21),
        ("logprobs", -1), ("logit_bias", {-1: 0.0}), ("logit_bias", {1: 101.0}), ("logit_bias", {1: float("nan")}),
        ("stop_token_ids", [-1]), ("stop_token_ids", ["x"]), ("bad_words_token_ids", [[]]),
        ("bad_words_token_ids", [[-1]]),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})


def test_the_ends_of_every_range_are_accepted() -> None:
    SamplingParams(max_tokens=1, temperature=0, top_p=1, top_k=0, min_p=0, seed=0, logprobs=0, min_tokens=1)
    SamplingParams(min_p=1, seed=2**63 - 1, logprobs=20, presence_penalty=-2, frequency_penalty=2)
    SamplingParams(logit_bias={0: -100, 1: 100}, stop_token_ids=[0], bad_words_token_ids=[[0]])


def test_messages_stay_short_whatever_was_given() -> None:
    with pytest.raises(ValueError) as caught:
        SamplingParams(temperature="9" * 10_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 120


def test_every_named_token_is_listed_with_its_field() -> None:
    params = SamplingParams(stop_token_ids=[1], logit_bias={2: 1.0}, bad_words_token_ids=[[3, 4]])
    assert list(params.named_token_ids) == [
        ("stop_token_ids", 1), ("logit_bias", 2), ("bad_words_token_ids", 3), ("bad_words_token_ids", 4),
    ]  # fmt: skip
