"""Penalties, biases, bans and masks, each against the plain formula, rows together."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from engine.core.sampling_params import SamplingParams
from engine.core.sequence import Sequence
from engine.runner.logit_edits import LogitEdits, mask_disallowed
from tests.engine.runner.driving import make_sequence, sampling_row

VOCAB = 70
INFINITY = float("inf")


def edited(*sequences: Sequence, logits: torch.Tensor | None = None) -> torch.Tensor:
    if logits is None:
        logits = torch.arange(-35.0, 35.0).repeat(len(sequences), 1)
    logits = logits.clone()
    LogitEdits([sampling_row(sequence) for sequence in sequences], VOCAB).apply(logits)
    return logits


def by_hand(sequence: Sequence) -> np.ndarray:
    """The three penalties by their definitions, for the logits that `edited` starts from."""
    params = sequence.sampling_params
    logits = np.arange(-35.0, 35.0)
    counts = Counter(sequence.completion_token_ids)
    for token in set(sequence.token_ids):
        value = logits[token]
        logits[token] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    for token, count in counts.items():
        logits[token] -= params.presence_penalty + params.frequency_penalty * count
    return logits


def test_penalties_count_prompt_and_completion_as_documented() -> None:
    rows = [
        make_sequence([1, 2, 60, 60, 61, 60], SamplingParams(repetition_penalty=1.5), num_prompt_tokens=3),
        make_sequence([1, 2, 60, 60, 61, 60], SamplingParams(presence_penalty=0.7), num_prompt_tokens=3),
        make_sequence([1, 2, 60, 60, 61, 60], SamplingParams(frequency_penalty=-0.4), num_prompt_tokens=3),
        make_sequence(
            [5, 5, 9],
            SamplingParams(repetition_penalty=0.8, presence_penalty=1.0, frequency_penalty=0.5),
            num_prompt_tokens=1,
        ),
        make_sequence([1, 2, 3], SamplingParams()),
    ]
    assert np.allclose(edited(*rows).numpy(), np.stack([by_hand(row) for row in rows]), atol=1e-5)


def test_penalties_follow_a_growing_sequence() -> None:
    sequence = make_sequence([1, 2], SamplingParams(frequency_penalty=0.5, repetition_penalty=1.2))
    for token in (60, 61, 60):
        assert np.allclose(edited(sequence)[0].numpy(), by_hand(sequence), atol=1e-5)
        sequence.token_ids.append(token)
    assert np.allclose(edited(sequence)[0].numpy(), by_hand(sequence), atol=1e-5)


def test_bias_is_added_after_penalties_and_outside_the_vocabulary_ignored() -> None:
    params = SamplingParams(presence_penalty=1.0, logit_bias={60: 2.5, 3: -100.0, 10**6: 1.0})
    changed = edited(make_sequence([60, 60], params, num_prompt_tokens=1), make_sequence([1]))
    assert changed[0, 60] == 25.0 - 1.0 + 2.5
    assert changed[0, 3] == -132.0
    assert torch.equal(changed[1], torch.arange(-35.0, 35.0))


@pytest.mark.parametrize(("generated", "banned"), [(0, True), (1, True), (2, False)])
def test_no_stop_token_before_min_tokens(generated: int, banned: bool) -> None:
    sequence = make_sequence(
        [1] * (3 + generated), SamplingParams(min_tokens=2), num_prompt_tokens=3, stop_ids=frozenset({7, 8})
    )
    assert set(torch.isinf(edited(sequence)[0]).nonzero().flatten().tolist()) == ({7, 8} if banned else set())


def test_a_bad_word_is_banned_where_its_beginning_was_generated() -> None:
    params = SamplingParams(bad_words_token_ids=[[4], [10, 11], [20, 21, 22], [30, 31]])
    sequence = make_sequence([30, 20, 21, 10], params, num_prompt_tokens=1)
    assert torch.isinf(edited(sequence)[0]).nonzero().flatten().tolist() == [4, 11]
    sequence.token_ids[1:] = [20, 21]
    assert torch.isinf(edited(sequence)[0]).nonzero().flatten().tolist() == [4, 22]
    sequence.token_ids[1:] = []
    assert torch.isinf(edited(sequence)[0]).nonzero().flatten().tolist() == [4]


def bitmask(*rows: set[int] | None) -> np.ndarray:
    """int32 words from sets of allowed tokens; None is a row of all ones."""
    words = np.full((len(rows), -(-VOCAB // 32)), -1, np.int32)
    for row, allowed in enumerate(rows):
        if allowed is not None:
            bits = np.zeros(words.shape[1] * 32, np.uint8)
            bits[list(allowed)] = 1
            words[row] = np.packbits(bits, bitorder="little").view(np.int32)
    return words


@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_mask_keeps_exactly_the_allowed_tokens(as_tensor: bool) -> None:
    logits = torch.randn(4, VOCAB)
    allowed = [{0, 31, 32, 69}, None, set(), {5}]
    masked = logits.clone()
    words = bitmask(*allowed)
    mask_disallowed(masked, torch.from_numpy(words) if as_tensor else words)
    for row, tokens in enumerate(allowed):
        kept = set(range(VOCAB)) if tokens is None else tokens
        assert set(masked[row].isfinite().nonzero().flatten().tolist()) == kept
        assert torch.equal(masked[row, list(kept)], logits[row, list(kept)])


def test_bits_past_the_vocabulary_do_not_count() -> None:
    masked = torch.zeros(1, VOCAB)
    mask_disallowed(masked, bitmask({VOCAB, VOCAB + 1}))
    assert (masked == -INFINITY).all()


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[2, 3\], not \[2, 2\]"):
        mask_disallowed(torch.zeros(2, VOCAB), np.zeros((2, 2), np.int32))
