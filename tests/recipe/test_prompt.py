"""Prompts: text, special ranges, and what becomes of them when a prompt is cut."""

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.prompt import Prompt, RenderedPrompt, SpecialToken, SpecialTokens

PIECES = st.lists(st.tuples(st.text("ab<é", max_size=4), st.booleans()), max_size=8)


def prompt_of(pieces: list[tuple[str, bool]]) -> Prompt:
    prompt = Prompt()
    for text, is_special in pieces:
        if is_special:
            prompt.push_special(text)
        else:
            prompt.push_text(text)
    return prompt


@given(PIECES)
def test_special_ranges_hold_the_special_pieces_in_order(pieces: list[tuple[str, bool]]) -> None:
    prompt = prompt_of(pieces)
    specials = [prompt.text[start:end] for start, end in prompt.special_ranges]
    assert specials == [text for text, is_special in pieces if is_special and text]


@given(PIECES)
def test_stretches_add_up_to_the_text_and_no_two_ordinary_ones_touch(pieces: list[tuple[str, bool]]) -> None:
    stretches = list(prompt_of(pieces).stretches())
    assert "".join(text for text, _ in stretches) == "".join(text for text, _ in pieces)
    assert all(text for text, _ in stretches)
    for (_, left), (_, right) in pairwise(stretches):
        assert left or right


@given(PIECES, st.data())
def test_a_cut_keeps_whole_specials_and_turns_a_cut_one_into_text(
    pieces: list[tuple[str, bool]], data: st.DataObject
) -> None:
    prompt = prompt_of(pieces)
    text, ranges = prompt.text, prompt.special_ranges
    at = data.draw(st.integers(0, len(text)))
    tail = prompt.split_off(at)
    assert (prompt.text, tail.text) == (text[:at], text[at:])
    assert prompt.special_ranges == [span for span in ranges if span[1] <= at]
    assert tail.special_ranges == [(start - at, end - at) for start, end in ranges if start >= at]


def test_a_cut_outside_the_text_is_refused() -> None:
    with pytest.raises(IndexError):
        prompt_of([("ab", False)]).split_off(3)


def test_a_rendered_prompt_cannot_be_constructed() -> None:
    with pytest.raises(TypeError):
        RenderedPrompt()


def test_spellings_that_are_not_given_keep_their_defaults() -> None:
    tokens = SpecialTokens(user="U")
    assert tokens.token(SpecialToken.User) == "U"
    assert tokens.token(SpecialToken.Bos) == SpecialToken.Bos.default_str() == "<｜begin▁of▁sentence｜>"


def test_special_tokens_are_numbered_in_order_and_equal_only_themselves() -> None:
    assert [int(token) for token in SpecialToken] == list(range(18))
    assert SpecialToken.Bos != 0
    assert repr(SpecialToken.Dsml) == "SpecialToken.Dsml"


def test_spellings_survive_the_way_between_processes() -> None:
    for tokens in (SpecialTokens(), SpecialTokens(user="<u>")):
        copy = pickle.loads(pickle.dumps(tokens))
        assert [copy.token(kind) for kind in SpecialToken] == [tokens.token(kind) for kind in SpecialToken]
