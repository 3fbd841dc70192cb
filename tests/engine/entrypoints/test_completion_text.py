"""Texts of whole completions: what the tokenizer's own decoder says, and where a stop string cuts them."""

from __future__ import annotations

from random import Random

import pytest

from engine.entrypoints.completion_text import Detokenizer
from engine.entrypoints.sampling_params import SamplingParams
from engine.runner.weights.model_files import open_model
from recipe.encoding.tokenizer import Tokenizer

TEXT = "Grüße: the quick brown fox 🦊 jumps over 12,345 lazy dogs.\n\nEnd"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(open_model(None).tokenizer_json)


def test_a_text_is_what_the_tokenizers_own_decoder_says(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(f"<|im_start|>{TEXT}<|im_end|>{TEXT}")
    for skips in (True, False):
        text = Detokenizer(tokenizer).text(skip_special_tokens=skips)
        assert not text.push(ids)
        assert str(text) == tokenizer.inner.decode(ids, skip_special_tokens=skips)


@pytest.mark.parametrize("stop", ["brown", "n fox 🦊 j", "🦊", "2,3", "\n\n", "End", "G"])
def test_a_stop_string_cuts_the_text_wherever_the_tokens_are_split(tokenizer: Tokenizer, stop: str) -> None:
    ids, random = tokenizer.encode(TEXT), Random(0)
    for sizes in ([len(ids)], [1] * len(ids), *([random.randrange(1, 5) for _ in ids] for _ in range(20))):
        text, rest = Detokenizer(tokenizer).text(["never said", stop]), list(ids)
        while not text.push([rest.pop(0) for _ in range(min(sizes.pop(), len(rest)))]):
            assert rest, "the stop string was missed"
        assert (str(text), text.stop) == (TEXT[: TEXT.index(stop)], stop)


def test_the_stop_string_that_is_completed_first_counts(tokenizer: Tokenizer) -> None:
    text = Detokenizer(tokenizer).text(["quick brown fox", "brown"])
    assert text.push(tokenizer.encode(TEXT))
    assert (str(text), text.stop) == ("Grüße: the quick ", "brown")


def test_a_stop_string_may_be_the_spelling_of_an_added_token_that_is_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b")
    shown, skipped = (Detokenizer(tokenizer).text(["<|im_end|>"], skip_special_tokens=skips) for skips in (False, True))
    assert shown.push(ids) and str(shown) == "a"
    assert not skipped.push(ids) and str(skipped) == "ab"


def test_the_text_of_one_token_shows_a_part_of_a_character_as_such(tokenizer: Tokenizer) -> None:
    first, *_ = tokenizer.encode("🦊")
    assert Detokenizer(tokenizer).token(first).endswith("\ufffd")
    assert Detokenizer(tokenizer).token(tokenizer.encode(" fox")[0]) == " fox"


@pytest.mark.parametrize("stop", ["", ["a", ""], [7]])
def test_an_empty_stop_string_is_refused(stop: object) -> None:
    if stop == "":
        assert SamplingParams(stop=()).stop_strings == ()
    with pytest.raises(ValueError, match="stop must hold strings that are not empty"):
        SamplingParams(stop=stop)  # type: ignore[arg-type]


@pytest.mark.parametrize("words", ["word", [""], [7]])
def test_bad_words_are_a_list_of_texts(words: object) -> None:
    with pytest.raises(ValueError, match="bad_words must hold strings that are not empty"):
        SamplingParams(bad_words=words)  # type: ignore[arg-type]
