"""The same output means the same, however it is cut: every output of the golden stream cases, at every place."""

import json
from typing import Any

import pytest

import recipe
from recipe.encoding.tokenizer import Tokenizer
from recipe.stream.parsing_options import ParsingOptions
from tests.oracle.build import make_parsing_options
from tests.oracle.corpus import golden_cases
from tests.oracle.tokenizer_files import get_tokenizer
from tests.recipe.recorded_output import parsed_text, parsed_tokens

MAX_LENGTH = 400  # longer outputs are cut at every seventh place only


def streams() -> list[dict[str, Any]]:
    return [case["input"] for case in golden_cases() if case["kind"] in ("stream", "sweep")]


def options_of(parsing: str) -> ParsingOptions:
    options: ParsingOptions = make_parsing_options(recipe, json.loads(parsing))
    return options


def text_outputs() -> list[tuple[str, str]]:
    """Each text with its parsing options, once; the options as JSON."""
    found: dict[tuple[str, str], None] = {}
    for stream in streams():
        text = stream.get("sweep_text") or "".join(chunk.get("text", "") for chunk in stream.get("chunks", ()))
        if text and not any("tokens" in chunk for chunk in stream.get("chunks", ())):
            found[text, json.dumps(stream.get("parsing", {}), sort_keys=True)] = None
    return list(found)


def token_outputs() -> list[tuple[tuple[int, ...], str]]:
    """The same of token IDs of the tiny tokenizer."""
    found: dict[tuple[tuple[int, ...], str], None] = {}
    for stream in streams():
        ids = stream.get("sweep_tokens") or [i for c in stream.get("chunks", ()) for i in c.get("tokens", ())]
        if ids and stream.get("tokenizer") == "tiny":
            found[tuple(ids), json.dumps(stream.get("parsing", {}), sort_keys=True)] = None
    return list(found)


def ends_amid_a_character(ids: tuple[int, ...], tokenizer: Tokenizer) -> bool:
    return b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace").endswith("\ufffd")


def cuts(length: int) -> range:
    return range(1, length, 1 if length <= MAX_LENGTH else 7)


def test_the_corpus_has_outputs_of_text_and_of_tokens() -> None:
    assert len(text_outputs()) > 150
    assert len(token_outputs()) > 40


def test_a_text_output_means_the_same_at_every_split_and_one_character_at_a_time() -> None:
    for text, parsing in text_outputs():
        options = options_of(parsing)
        whole = parsed_text([text], options)
        for cut in cuts(len(text)):
            assert parsed_text([text[:cut], text[cut:]], options) == whole, (text, parsing, cut)
        assert parsed_text(text, options) == whole, (text, parsing)


def test_a_token_output_means_the_same_at_every_split_and_one_token_at_a_time() -> None:
    tokenizer = get_tokenizer(recipe, "tiny")
    for ids, parsing in token_outputs():
        if ends_amid_a_character(ids, tokenizer):
            continue  # what is held with the last character is lost, and how much that is depends on the cut
        options = options_of(parsing)
        whole = parsed_tokens([list(ids)], options, tokenizer)
        for cut in cuts(len(ids)):
            assert parsed_tokens([list(ids[:cut]), list(ids[cut:])], options, tokenizer) == whole, (ids, parsing, cut)
        assert parsed_tokens([[i] for i in ids], options, tokenizer) == whole, (ids, parsing)


@pytest.mark.parametrize("newlines", [1, 2, 50_000])
def test_a_run_of_newlines_before_a_marker_is_dropped_however_long_it_is(newlines: int) -> None:
    options = ParsingOptions()
    output, _ = parsed_text(["text", *["\n"] * newlines, "<", "｜DSML｜", " calls>"], options)
    assert output == [("content", "text")]
