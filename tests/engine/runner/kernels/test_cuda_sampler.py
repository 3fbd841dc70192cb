"""The sampling kernel, run on the CPU, against the sampler that works with tensors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine.core.sampling_params import SamplingParams
from engine.core.sequence import Sequence
from engine.runner.kernels import cuda_sampler
from engine.runner.kernels.cuda_sampler import CudaSampler, apply_bitmask, on_device
from engine.runner.logit_edits import mask_disallowed
from engine.runner.sampler import PendingTokens, Sampler, tokens_of
from engine.runner.sampling_rows import EDIT, ROW
from tests.engine.runner.driving import GREEDY, make_sequence, sampling_row
from tests.engine.runner.kernels.shim import Shim, require_cpp_compiler

SETTINGS = [
    GREEDY,
    SamplingParams(),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=1.7, top_k=20),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.05),
    SamplingParams(top_k=1),
    SamplingParams(top_p=1e-9),
    SamplingParams(temperature=1.3, top_k=200, top_p=0.9, min_p=0.01),
    SamplingParams(top_p=0.99, logprobs=3),
    SamplingParams(temperature=0, logprobs=0, repetition_penalty=1.3, presence_penalty=0.5),
    SamplingParams(temperature=0.8, frequency_penalty=1.1, logit_bias={3: 5.0, 7: -100.0}, logprobs=5),
    SamplingParams(min_tokens=9, max_tokens=20, stop_token_ids=[1, 2], bad_words_token_ids=[[4], [0, 5]]),
    SamplingParams(temperature=1e-300, top_k=2**32 - 1),
]


@pytest.fixture(params=[64, 256], ids=lambda threads: f"{threads} threads")
def shim(request: pytest.FixtureRequest, libraries: Path) -> Shim:
    require_cpp_compiler()
    return Shim(libraries, threads=request.param)


def sequences(count: int, vocab: int) -> list[Sequence]:
    """Sequences whose settings all differ, with some tokens drawn already."""
    return [
        make_sequence(
            [token % vocab for token in (row, 3, 7, 0, 5, row + 1, 3)],
            SETTINGS[row % len(SETTINGS)],
            num_prompt_tokens=3,
            seed=row * 0x9E3779B97F4A7C15 & (2**63 - 1),
            stop_ids=frozenset({1, 2}),
        )
        for row in range(count)
    ]


def random_mask(rows: int, vocab: int, seed: int) -> Any:
    """Every third row unconstrained, the others a quarter of the vocabulary and the first tokens."""
    random = np.random.default_rng(seed)
    words = [random.integers(0, 2**32, (rows, -(-vocab // 32)), np.uint32) for _ in range(2)]
    mask = words[0] & words[1]
    mask[:, 0] |= 0xFF
    mask[::3] = 0xFFFFFFFF
    return mask.view(np.int32)


def random_logits(rows: int, vocab: int, seed: int, kind: str = "smooth") -> torch.Tensor:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    if kind == "ties":
        logits = logits.round()
    if kind == "gaps":
        logits[logits > 2] = -math.inf
    return logits


def both(
    shim: Shim, logits: torch.Tensor, rows: list[Sequence], mask: Any = None
) -> tuple[PendingTokens, PendingTokens]:
    """What the kernel and what the tensors give."""
    items = [sampling_row(sequence) for sequence in rows]
    ours = CudaSampler(logits.shape[1], shim).sample(logits.clone(), items, mask)
    return ours, Sampler(logits.shape[1]).sample(logits.clone(), items, mask)


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("kind", ["smooth", "ties", "gaps"])
@pytest.mark.parametrize("vocab", [8, 31, 256, 1000, 5003])
def test_the_kernel_draws_what_the_tensors_draw(shim: Shim, vocab: int, kind: str, masked: bool) -> None:
    rows = sequences(28, vocab)
    mask = random_mask(len(rows), vocab, seed=vocab) if masked else None
    ours, expected = both(shim, random_logits(len(rows), vocab, seed=vocab, kind=kind), rows, mask)
    assert ours.token_ids.tolist() == expected.token_ids.tolist()
    assert_same_logprobs(ours, expected)


def assert_same_logprobs(ours: PendingTokens, expected: PendingTokens) -> None:
    for token, wanted in zip(tokens_of(ours), tokens_of(expected), strict=True):
        assert (token.logprobs is None) == (wanted.logprobs is None)
        if token.logprobs and wanted.logprobs:
            assert token.logprobs.logprob == pytest.approx(wanted.logprobs.logprob, abs=1e-5)
            values = [value for _, value in wanted.logprobs.top]
            assert [value for _, value in token.logprobs.top] == pytest.approx(values, abs=1e-5)


def test_few_of_many_draws_differ_from_the_tensors_and_only_by_rounding(libraries: Path) -> None:
    require_cpp_compiler()
    shim, number = Shim(libraries, threads=32), 10_000
    logits = random_logits(1, 700, seed=1).expand(number, -1).contiguous()
    params = [SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(top_k=50, top_p=0.95)]
    rows = [make_sequence([0], params[row % 3], seed=row) for row in range(number)]
    ours, expected = both(shim, logits, rows)
    assert int((ours.token_ids != expected.token_ids).sum()) <= number // 10_000
    assert len(set(ours.token_ids.tolist())) > 100


def test_a_whole_vocabulary_gives_the_same_draws(libraries: Path) -> None:
    require_cpp_compiler()
    rows = sequences(len(SETTINGS), 128_256)
    ours, expected = both(Shim(libraries), random_logits(len(rows), 128_256, seed=3), rows)
    assert ours.token_ids.tolist() == expected.token_ids.tolist()


def test_a_nucleus_of_no_weight_at_all_holds_the_most_likely_token(shim: Shim) -> None:
    """Requests may not ask for it, but rounding could come to it."""
    params = SamplingParams()
    msgspec.structs.force_setattr(params, "top_p", 0.0)
    rows, logits = [make_sequence([0], params, seed=row) for row in range(8)], random_logits(8, 1000, seed=4)
    ours, expected = both(shim, logits, rows)
    assert ours.token_ids.tolist() == expected.token_ids.tolist() == logits.argmax(dim=-1).tolist()


def test_equal_logits_are_drawn_from_evenly(libraries: Path) -> None:
    require_cpp_compiler()
    rows = [make_sequence([0], SamplingParams(top_p=0.5, top_k=3), seed=seed) for seed in range(200)]
    ours, expected = both(Shim(libraries, threads=32), torch.zeros(200, 300), rows)
    assert ours.token_ids.tolist() == expected.token_ids.tolist()
    assert len(set(ours.token_ids.tolist())) > 100


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_row_without_a_distribution_is_flagged_and_leaves_the_others_alone(shim: Shim, poison: float) -> None:
    rows, logits = sequences(len(SETTINGS), 500), random_logits(len(SETTINGS), 500, seed=9)
    expected = both(shim, logits, rows)[1].token_ids.tolist()
    logits[4, 100 if poison > 0 or math.isnan(poison) else slice(None)] = poison
    assert both(shim, logits, rows)[0].token_ids.tolist() == [*expected[:4], -1, *expected[5:]]


def test_a_row_whose_mask_allows_nothing_is_flagged(shim: Shim) -> None:
    mask = np.full((2, 4), -1, np.int32)
    mask[1] = 0
    mask[1, 3] = -1 << 4  # bits past the vocabulary
    ours, _ = both(shim, random_logits(2, 100, seed=2), [make_sequence([0], SamplingParams())] * 2, mask)
    assert [token.token_id is None for token in tokens_of(ours)] == [False, True]


def test_a_mask_of_another_shape_is_refused(shim: Shim) -> None:
    with pytest.raises(ValueError, match=r"must have shape \[1, 4\], not \[1, 5\]"):
        both(shim, torch.zeros(1, 100), [make_sequence([0])], np.zeros((1, 5), np.int32))


def test_the_draw_does_not_depend_on_slot_batch_or_the_order_of_threads(shim: Shim) -> None:
    rows, logits = sequences(27, 3000), random_logits(27, 3000, seed=5)
    sampler = CudaSampler(3000, shim)

    def draw(chosen: list[int]) -> list[int]:
        items = [sampling_row(rows[row]) for row in chosen]
        drawn: list[int] = sampler.sample(logits[chosen].clone(), items, None).token_ids.tolist()
        return drawn

    together = draw(list(range(27)))
    assert draw(list(range(27))[::-1])[::-1] == together
    assert [draw([row])[0] for row in range(27)] == together
    shim.backwards = True
    assert draw(list(range(27))) == together


def test_an_empty_batch_launches_nothing(shim: Shim) -> None:
    assert CudaSampler(100, shim).sample(torch.zeros(0, 100), [], None).token_ids.tolist() == []
    assert shim.launched == []


@pytest.mark.parametrize("vocab", [1, 32, 33, 1000, 2049])
def test_the_mask_kernel_hides_what_the_mask_hides(shim: Shim, vocab: int) -> None:
    mask = random_mask(5, vocab, seed=vocab)
    logits = random_logits(5, vocab, seed=1)
    expected = logits.clone()
    mask_disallowed(expected, mask)
    wide = Shim(shim._folder)
    apply_bitmask(wide, logits, on_device(mask, logits.device))
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_vocabulary_beyond_the_kernel_is_sampled_by_tensors(
    libraries: Path, monkeypatch: pytest.MonkeyPatch, logprobs: int | None
) -> None:
    require_cpp_compiler()
    monkeypatch.setattr(cuda_sampler, "_MOST_TOKENS", 999)
    shim = Shim(libraries)
    rows = [replace_params(sequence, logprobs) for sequence in sequences(9, 1000)]
    ours, expected = both(shim, random_logits(9, 1000, seed=1), rows, random_mask(9, 1000, seed=4))
    assert ours.token_ids.tolist() == expected.token_ids.tolist()
    assert "sample_rows" not in {kernel for kernel, _, _ in shim.launched}
    assert_same_logprobs(ours, expected)


def replace_params(sequence: Sequence, logprobs: int | None) -> Sequence:
    sequence.sampling_params = msgspec.structs.replace(sequence.sampling_params, logprobs=logprobs)
    return sequence


def test_records_have_the_size_that_the_kernel_reads() -> None:
    assert (ROW.itemsize, EDIT.itemsize) == (40, 16)
