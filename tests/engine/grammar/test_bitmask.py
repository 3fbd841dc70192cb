"""The masks of a step: one row a sampling sequence, whatever the others do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.core.sampling_params import SamplingParams
from engine.grammar.bitmask import BitmaskFiller
from engine.grammar.vocabulary import Vocabulary
from engine.runner.sampler import Sampler
from tests.engine.grammar.following import compiled, follow, mask_of, tokens_of
from tests.engine.runner.driving import make_sequence, sampling_row

STOPS = frozenset([2])
VOCAB_SIZE = 49152


@pytest.mark.parametrize("num_threads", [0, 2])
def test_rows_without_a_grammar_are_all_ones_and_the_others_their_matchers_own(
    smollm2: Vocabulary, num_threads: int
) -> None:
    filler = BitmaskFiller(VOCAB_SIZE)
    filler._num_threads = num_threads
    first = compiled(smollm2, "json").new_matcher(STOPS)
    second = compiled(smollm2, "regex", "[a-z]+").new_matcher(STOPS)
    free = compiled(smollm2, "json", begins_after="</think>").new_matcher(STOPS)
    more = [compiled(smollm2, "json").new_matcher(STOPS) for _ in range(4)]
    rows = filler.fill([None, first, None, second, free, *more])
    assert rows.dtype == np.int32 and rows.shape == (9, 1536)
    assert (rows[0] == -1).all() and (rows[2] == -1).all()
    for row, matcher in ((1, first), (3, second), (4, free), *enumerate(more, 5)):
        bits = np.unpackbits(rows[row].view(np.uint8), bitorder="little")
        assert (bits == mask_of(matcher)).all()
    assert not rows[1].all() and np.count_nonzero(rows[1]) < 1000


def test_a_filled_buffer_stays_as_it_is_during_the_next_fill(smollm2: Vocabulary) -> None:
    filler = BitmaskFiller(VOCAB_SIZE)
    matcher = compiled(smollm2, "json").new_matcher(STOPS)
    before = filler.fill([matcher, None])
    copy = before.copy()
    follow(matcher, tokens_of(smollm2, '{"a'))
    after = filler.fill([None, matcher])
    assert (before == copy).all() and not np.shares_memory(before, after)
    assert np.shares_memory(before, filler.fill([None]))


def test_a_grammar_that_has_failed_leaves_an_empty_row_and_the_others_alone(smollm2: Vocabulary) -> None:
    grammar = compiled(smollm2, "json")
    broken, sound = grammar.new_matcher(STOPS), grammar.new_matcher(STOPS)
    assert broken.bound is not None
    broken.bound.consume_token(tokens_of(smollm2, "x")[0])
    rows = BitmaskFiller(VOCAB_SIZE).fill([broken, sound])
    assert not rows[0].any() and rows[1].any()
    assert grammar.has_failed and not broken.is_terminated()


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_the_draws_follow_the_sequences_when_rows_change_places(smollm2: Vocabulary, order: list[int]) -> None:
    """Masks and logits in another order give the same tokens, and an unconstrained row the same as without masks."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, VOCAB_SIZE, generator=generator) * 3
    kinds = [("regex", "[0-9]+"), None, ("json", ""), ("choice", '["yes","no"]')]
    matchers = [kind and compiled(smollm2, *kind).new_matcher(STOPS) for kind in kinds]
    sequences = [make_sequence([5, 6], SamplingParams(temperature=1.0), seed=row) for row in range(4)]

    def draws(rows: list[int], masked: bool) -> dict[int, int]:
        items = [sampling_row(sequences[row]) for row in rows]
        bitmask = BitmaskFiller(VOCAB_SIZE).fill([matchers[row] for row in rows]) if masked else None
        drawn = Sampler(VOCAB_SIZE).sample(logits[rows].clone(), items, bitmask).token_ids.tolist()
        return dict(zip(rows, drawn, strict=True))

    masked = draws(order, True)
    assert masked == draws([0, 1, 2, 3], True)
    assert masked[1] == draws([0, 1, 2, 3], False)[1]
    for row, matcher in enumerate(matchers):
        assert matcher is None or matcher.accept_token(masked[row])
