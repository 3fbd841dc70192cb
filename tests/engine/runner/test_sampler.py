"""The sampler against plain numpy: what survives the filters, how often it is drawn, and that rows stay apart."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.runner import SampledToken
from engine.core.sampling_params import SamplingParams
from engine.core.sequence import Sequence
from engine.runner.sampler import Sampler, tokens_of
from tests.engine.runner.driving import GREEDY, make_sequence, sampling_row

VOCAB = 1000


def sample(logits: torch.Tensor, sequences: list[Sequence], bitmask: object = None) -> list[SampledToken]:
    rows = [sampling_row(sequence) for sequence in sequences]
    return tokens_of(Sampler(logits.shape[1]).sample(logits.clone(), rows, bitmask))


def ids(sampled: list[SampledToken]) -> list[int | None]:
    return [token.token_id for token in sampled]


def surviving(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The distribution by the book: scale, top_k, top_p, min_p, with ties kept; float64 `[V]`."""
    scaled = (logits.astype(np.float64) - logits.max()) / params.temperature
    if 0 < params.top_k < len(scaled):
        scaled = np.where(scaled >= np.sort(scaled)[-params.top_k], scaled, -np.inf)
    weights = np.exp(scaled)
    probabilities = weights / weights.sum()
    if params.top_p < 1:
        order = np.argsort(-probabilities, kind="stable")
        before = np.cumsum(probabilities[order]) - probabilities[order]
        least = probabilities[order][max(1, int((before < params.top_p).sum())) - 1]
        probabilities = np.where(probabilities >= least, probabilities, 0)
    probabilities = np.where(probabilities >= params.min_p * probabilities.max(), probabilities, 0)
    return probabilities / probabilities.sum()


def drawn(logits: torch.Tensor, params: SamplingParams, count: int) -> Counter[int]:
    """Tokens of `count` draws from one row of logits, each with a seed of its own, 500 at a time."""
    counts: Counter[int] = Counter()
    for begin in range(0, count, 500):
        sequences = [make_sequence([0], params, seed=seed) for seed in range(begin, begin + 500)]
        counts.update(token for token in ids(sample(logits.expand(500, -1), sequences)) if token is not None)
    return counts


CASES = {
    "plain": SamplingParams(),
    "cool": SamplingParams(temperature=0.5),
    "hot": SamplingParams(temperature=1.7),
    "top_k": SamplingParams(top_k=20),
    "top_p": SamplingParams(top_p=0.8),
    "min_p": SamplingParams(min_p=0.05),
    "all": SamplingParams(temperature=1.3, top_k=200, top_p=0.9, min_p=0.01),
}


def assert_follows(counts: Counter[int], expected: np.ndarray) -> None:
    """A chi-square test of drawn tokens; those that are expected fewer than 8 times count together."""
    draws = sum(counts.values())
    assert not [token for token in counts if expected[token] == 0]
    common = [token for token in range(len(expected)) if expected[token] * draws >= 8]
    rest = draws - sum(counts[token] for token in common)
    observed = [counts[token] for token in common] + [rest]
    wanted = [expected[token] * draws for token in common] + [max(1.0, draws * (1 - expected[common].sum()))]
    chi_square = sum((o - w) ** 2 / w for o, w in zip(observed, wanted, strict=True))
    degrees = len(common)
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees)  # about one in 30,000; the seeds are fixed


@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_filtered_softmax(name: str) -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(5)) * 2.5
    expected = surviving(logits[0].numpy(), CASES[name])
    assert_follows(drawn(logits, CASES[name], 8000), expected)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    coarse=st.booleans(),
    params=st.builds(
        SamplingParams,
        temperature=st.floats(0.1, 3),
        top_k=st.integers(0, 300),
        top_p=st.floats(0.01, 1),
        min_p=st.floats(0, 0.5),
    ),
)
def test_a_drawn_token_survives_the_filters(seed: int, coarse: bool, params: SamplingParams) -> None:
    logits = torch.randn(1, 301, generator=torch.Generator().manual_seed(seed)) * 3
    if coarse:
        logits = logits.round()  # many equal logits
    allowed = surviving(logits[0].numpy(), params)
    for token in drawn_once(logits, params, seed):
        # A float32 sum may put the border one token further when the mass hits top_p exactly.
        assert allowed[token] > 0 or logits[0, token] >= float(logits[0][allowed > 0].min()) - 1e-3


def drawn_once(logits: torch.Tensor, params: SamplingParams, seed: int) -> list[int]:
    sequences = [make_sequence([0], params, seed=seed + row) for row in range(8)]
    return [token for token in ids(sample(logits.expand(8, -1), sequences)) if token is not None]


def test_a_wide_nucleus_needs_more_than_the_first_values_sorted() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, :100] = 0.001
    counts = drawn(logits, SamplingParams(top_p=0.5), 4000)
    assert len(counts) > 900  # the border lies among equal logits, which survive together


def mixed_rows(count: int) -> list[Sequence]:
    """Sequences whose settings all differ."""
    settings_of_rows = [GREEDY, *CASES.values(), SamplingParams(top_k=3, logprobs=2, repetition_penalty=1.3)]
    return [
        make_sequence(range(row, row + 5), settings_of_rows[row % len(settings_of_rows)], num_prompt_tokens=2, seed=row)
        for row in range(count)
    ]


def test_a_row_gives_the_same_token_alone_in_another_slot_and_beside_others() -> None:
    logits = torch.randn(27, 49152, generator=torch.Generator().manual_seed(1)) * 4
    together = ids(sample(logits, mixed_rows(27)))
    backwards = ids(sample(logits.flip(0), mixed_rows(27)[::-1]))[::-1]
    alone = [ids(sample(logits[row : row + 1], [sequence]))[0] for row, sequence in enumerate(mixed_rows(27))]
    assert together == backwards == alone


def test_equal_seeds_repeat_and_positions_differ() -> None:
    logits = torch.zeros(1, 49152)
    first, again, later, other = (
        ids(sample(logits, [make_sequence([0] * length, SamplingParams(), seed=seed)]))[0]
        for length, seed in ((3, 9), (3, 9), (4, 9), (3, 10))
    )
    assert first == again
    assert len({first, later, other}) == 3


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_k=5, top_p=0.5, min_p=0.1)])
@pytest.mark.parametrize("poison", [math.nan, -math.inf, math.inf])
def test_a_row_without_a_distribution_gives_none_and_leaves_the_others_alone(
    params: SamplingParams, poison: float
) -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(2))
    rows = [make_sequence([0], params, seed=row) for row in range(3)]
    expected = ids(sample(logits, rows))
    logits[1] = poison
    assert ids(sample(logits, rows)) == [expected[0], None, expected[2]]


def test_minus_infinity_is_never_drawn() -> None:
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, [3, 999]] = 0.0
    assert set(drawn(logits, SamplingParams(temperature=5.0, top_p=0.99), 500)) == {3, 999}


def test_temperature_near_zero_is_greedy_without_overflow() -> None:
    logits = torch.randn(1, VOCAB) * 30
    assert ids(sample(logits, [make_sequence([0], SamplingParams(temperature=1e-300))])) == [int(logits.argmax())]


def test_logprobs_come_from_the_raw_logits_best_first() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(3))
    biased = SamplingParams(temperature=0, logit_bias={17: 100.0}, logprobs=4)
    alone = msgspec.structs.replace(GREEDY, logprobs=0)
    sampled = sample(logits, [make_sequence([0], biased), make_sequence([0]), make_sequence([0], alone)])
    expected = logits.log_softmax(-1)
    assert sampled[0].token_id == 17
    assert sampled[0].logprobs is not None
    assert sampled[0].logprobs.logprob == pytest.approx(float(expected[0, 17]))
    best = expected[0].topk(4)
    assert sampled[0].logprobs.top == [
        (int(token), pytest.approx(float(value))) for token, value in zip(best.indices, best.values, strict=True)
    ]
    assert sampled[1].logprobs is None
    assert sampled[2].logprobs is not None
    assert sampled[2].logprobs.top == []
