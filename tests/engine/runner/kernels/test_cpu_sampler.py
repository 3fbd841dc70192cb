"""The sampler of the CPU library against the sampler that works with tensors."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from engine.core.runner import SampledToken
from engine.core.sampling_params import SamplingParams
from engine.core.sequence import Sequence
from engine.runner.kernels.cpu_library import Draws
from engine.runner.kernels.cpu_sampler import CpuSampler
from engine.runner.sampler import Sampler, tokens_of
from tests.engine.runner.driving import make_sequence, sampling_row
from tests.engine.runner.kernels.test_cuda_sampler import SETTINGS, random_logits, random_mask, sequences
from tests.engine.runner.test_sampler import CASES, assert_follows, surviving


def draw(
    library: ctypes.CDLL, logits: torch.Tensor, rows: list[Sequence], mask: Any = None, threads: int = 2
) -> list[SampledToken]:
    def run(draws: Draws) -> None:
        library.drive_draws(ctypes.byref(draws), threads)

    items = [sampling_row(sequence) for sequence in rows]
    return CpuSampler(logits.shape[1], run).sample(logits.numpy().copy(), items, mask)


def expected(logits: torch.Tensor, rows: list[Sequence], mask: Any = None) -> list[SampledToken]:
    items = [sampling_row(sequence) for sequence in rows]
    return tokens_of(Sampler(logits.shape[1]).sample(logits.clone(), items, mask))


def ids(tokens: list[SampledToken]) -> list[int | None]:
    return [token.token_id for token in tokens]


def assert_same(ours: list[SampledToken], wanted: list[SampledToken]) -> None:
    assert ids(ours) == ids(wanted)
    for found, other in zip(ours, wanted, strict=True):
        assert (found.logprobs is None) == (other.logprobs is None)
        if found.logprobs and other.logprobs:
            assert found.logprobs.logprob == pytest.approx(other.logprobs.logprob, abs=1e-5)
            values = [value for _, value in other.logprobs.top]
            assert [value for _, value in found.logprobs.top] == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("kind", ["smooth", "ties", "gaps"])
@pytest.mark.parametrize("vocab", [8, 31, 256, 1003])
def test_the_library_draws_what_the_tensors_draw(driver: ctypes.CDLL, vocab: int, kind: str, masked: bool) -> None:
    rows = sequences(28, vocab)
    mask = random_mask(len(rows), vocab, seed=vocab) if masked else None
    logits = random_logits(len(rows), vocab, seed=vocab, kind=kind)
    assert_same(draw(driver, logits, rows, mask), expected(logits, rows, mask))


@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_filtered_softmax(best_driver: ctypes.CDLL, name: str) -> None:
    logits = random_logits(1, 1000, seed=5)
    rows = [make_sequence([0], CASES[name], seed=seed) for seed in range(8000)]
    counts = Counter(token for token in ids(draw(best_driver, logits.expand(8000, -1), rows)) if token is not None)
    assert counts.total() == 8000
    assert_follows(counts, surviving(logits[0].numpy(), CASES[name]))


def test_few_of_many_draws_differ_from_the_tensors_and_only_by_rounding(best_driver: ctypes.CDLL) -> None:
    number = 6000
    logits = random_logits(1, 700, seed=1).expand(number, -1).contiguous()
    params = [SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(top_k=50, top_p=0.95)]
    rows = [make_sequence([0], params[row % 3], seed=row) for row in range(number)]
    ours, wanted = ids(draw(best_driver, logits, rows)), ids(expected(logits, rows))
    assert sum(a != b for a, b in zip(ours, wanted, strict=True)) <= number // 10_000 + 1
    assert len(set(ours)) > 100


@pytest.mark.parametrize("spread", [3.0, 0.1])
def test_a_whole_vocabulary_gives_the_same_draws_however_flat_it_is(best_driver: ctypes.CDLL, spread: float) -> None:
    rows = sequences(len(SETTINGS), 128_256)
    logits = random_logits(len(rows), 128_256, seed=3) * spread / 3
    assert_same(draw(best_driver, logits, rows), expected(logits, rows))


@pytest.mark.parametrize("params", [SamplingParams(top_k=9000), SamplingParams(temperature=0.02, top_p=0.5, top_k=700)])
def test_thresholds_far_below_the_largest_logit_are_found(best_driver: ctypes.CDLL, params: SamplingParams) -> None:
    rows = [make_sequence([0], params, seed=seed) for seed in range(40)]
    logits = random_logits(40, 10_000, seed=8)
    assert_same(draw(best_driver, logits, rows), expected(logits, rows))


def test_equal_logits_are_drawn_from_evenly(best_driver: ctypes.CDLL) -> None:
    rows = [make_sequence([0], SamplingParams(top_p=0.5, top_k=3), seed=seed) for seed in range(200)]
    ours = ids(draw(best_driver, torch.zeros(200, 300), rows))
    assert ours == ids(expected(torch.zeros(200, 300), rows))
    assert len(set(ours)) > 100


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_row_without_a_distribution_is_flagged_and_leaves_the_others_alone(
    best_driver: ctypes.CDLL, poison: float
) -> None:
    rows, logits = sequences(len(SETTINGS), 500), random_logits(len(SETTINGS), 500, seed=9)
    wanted = ids(expected(logits, rows))
    logits[4, 100 if poison > 0 or math.isnan(poison) else slice(None)] = poison
    assert ids(draw(best_driver, logits, rows)) == [*wanted[:4], None, *wanted[5:]]


def test_a_row_whose_mask_allows_nothing_is_flagged(best_driver: ctypes.CDLL) -> None:
    mask = np.full((2, 4), -1, np.int32)
    mask[1] = 0
    mask[1, 3] = -1 << 4  # bits past the vocabulary
    rows = [make_sequence([0], SamplingParams())] * 2
    tokens = draw(best_driver, random_logits(2, 100, seed=2), rows, mask)
    assert [token.token_id is None for token in tokens] == [False, True]


def test_a_mask_of_another_shape_is_refused(best_driver: ctypes.CDLL) -> None:
    with pytest.raises(ValueError, match=r"must have shape \[1, 4\], not \[1, 5\]"):
        draw(best_driver, torch.zeros(1, 100), [make_sequence([0])], np.zeros((1, 5), np.int32))


def test_the_draw_does_not_depend_on_slot_batch_or_threads(best_driver: ctypes.CDLL) -> None:
    rows, logits = sequences(27, 3000), random_logits(27, 3000, seed=5)
    together = ids(draw(best_driver, logits, rows))
    assert ids(draw(best_driver, logits.flip(0), rows[::-1], threads=5))[::-1] == together
    assert [ids(draw(best_driver, logits[[row]], [rows[row]]))[0] for row in range(27)] == together


def test_every_alternative_is_told_where_as_many_are_asked_for(best_driver: ctypes.CDLL) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -math.inf]])
    (token,) = draw(best_driver, logits, [make_sequence([0], SamplingParams(temperature=0, logprobs=4))])
    assert token.logprobs is not None
    assert [token_id for token_id, _ in token.logprobs.top] == [1, 2, 0, 3]
    assert [math.exp(value) for _, value in token.logprobs.top] == pytest.approx(
        logits[0].softmax(0).sort()[0].flip(0).tolist()
    )


def test_an_empty_batch_draws_nothing() -> None:
    def refuse(draws: Draws) -> None:
        raise AssertionError("nothing is to be drawn")

    assert CpuSampler(100, refuse).sample(np.zeros((0, 100), np.float32), [], None) == []


@pytest.mark.parametrize("vocab", [8, 1003])
@pytest.mark.parametrize("kind", ["smooth", "ties"])
def test_a_plain_greedy_batch_gives_the_largest_logits_and_makes_nothing_for_a_row(
    driver: ctypes.CDLL, vocab: int, kind: str
) -> None:
    logits = random_logits(5, vocab, seed=vocab, kind=kind)
    logits[3, 2] = math.nan
    told: list[Draws] = []

    def run(draws: Draws) -> None:
        told.append(draws)
        driver.drive_draws(ctypes.byref(draws), 2)

    items = [sampling_row(make_sequence([0], SamplingParams(temperature=0, max_tokens=9))) for _ in range(5)]
    tokens = CpuSampler(vocab, run).sample(logits.numpy().copy(), items, None)
    wanted = [None if row == 3 else int(logits[row].argmax()) for row in range(5)]
    assert ids(tokens) == wanted
    assert [(draws.settings, draws.edits, draws.logprobs) for draws in told] == [(None, None, None)]


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": 0.5},
        {"logprobs": 0},
        {"min_tokens": 1},
        {"logit_bias": {1: 1.0}},
        {"bad_words_token_ids": [[1]]},
        {"repetition_penalty": 1.1},
        {"presence_penalty": -0.1},
        {"frequency_penalty": 0.1},
    ],
    ids=str,
)
def test_whatever_else_is_asked_for_is_told_to_the_library(setting: dict[str, Any]) -> None:
    told: list[Draws] = []
    plain = make_sequence([0], SamplingParams(temperature=0))
    other = make_sequence([0], SamplingParams(**({"temperature": 0} | setting)))
    CpuSampler(8, told.append).sample(np.zeros((2, 8), np.float32), [sampling_row(plain), sampling_row(other)], None)
    assert told[0].settings is not None
