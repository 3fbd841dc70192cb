"""The tokenizer: prompts by table and by stretch, and the bytes of single tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.encoding.tokenizer import Tokenizer
from recipe.prompt import Prompt
from tests.oracle.tokenizer_files import TINY_SPECIALS, tiny_tokenizer_json

TINY = json.loads(tiny_tokenizer_json())
THINK = 302


def tokenizer(**changes: Any) -> Tokenizer:
    return Tokenizer.from_str(json.dumps({**TINY, **changes}))


def added(**changes: Any) -> list[dict[str, Any]]:
    return [{**token, **changes} for token in TINY["added_tokens"]]


def prompt(*pieces: str) -> Prompt:
    """Ordinary text, except that the tiny tokenizer's special tokens become special."""
    built = Prompt()
    for piece in pieces:
        if piece in TINY_SPECIALS:
            built.push_special(piece)
        else:
            built.push_text(piece)
    return built


def text_of(tokens: Tokenizer, ids: list[int]) -> str:
    return b"".join(map(tokens.token_bytes, ids)).decode()


TEXTS = st.lists(
    st.sampled_from([*TINY_SPECIALS, "<plain_added>", "<hidden>", "hello", " w", "é", "\n\n", "<", "｜"])
).map("".join)


@given(TEXTS)
def test_no_spelling_in_ordinary_text_becomes_an_added_token(text: str) -> None:
    tokens = tokenizer()
    built = Prompt()
    built.push_special("<think>")
    built.push_text(text)
    ids = tokens.prompt_tokenizer.encode(built)
    assert ids[0] == THINK
    assert not set(ids[1:]) & tokens.added_spellings.keys()
    assert text_of(tokens, ids[1:]) == text


def test_ordinary_pieces_side_by_side_are_encoded_as_one_stretch() -> None:
    assert tokenizer().prompt_tokenizer.encode(prompt("he", "llo")) == tokenizer().encode("hello") == [259]


def test_the_ids_of_kept_stretches_are_the_same_the_second_time() -> None:
    tokens = tokenizer()
    built = prompt("<think>", "hello\n\n", "</think>", "json", "<think>", "hello\n\n")
    assert tokens.prompt_tokenizer.encode(built) == tokens.prompt_tokenizer.encode(built) == tokens.encode(built.text)


def test_a_special_token_outside_the_added_vocabulary_is_an_error() -> None:
    built = Prompt()
    built.push_special("hello")
    with pytest.raises(RuntimeError) as error:
        tokenizer().prompt_tokenizer.encode(built)
    assert str(error.value) == ('failed to encode conversation: special token "hello" is not in the added vocabulary')


def test_a_tokenizer_that_pads_is_refused_for_prompts() -> None:
    padding = {
        "strategy": "BatchLongest",
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    with pytest.raises(RuntimeError, match="pads"):
        tokenizer(padding=padding).prompt_tokenizer.encode(prompt("hello"))


def test_truncation_does_not_shorten_a_prompt() -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    assert len(tokenizer(truncation=truncation).prompt_tokenizer.encode(prompt("abcdef"))) == 6


def test_no_bos_token_is_added() -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<think>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<think>": {"id": "<think>", "ids": [THINK], "tokens": ["<think>"]}},
    }
    tokens = tokenizer(post_processor=template)
    assert tokens.encode("hello") == tokens.prompt_tokenizer.encode(prompt("hello")) == [259]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_stretches_get_a_leading_space_where_the_whole_text_would(scheme: str, nested: bool) -> None:
    metaspace: dict[str, Any] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    if nested:
        metaspace = {"type": "Sequence", "pretokenizers": [metaspace]}
    model = {**TINY["model"], "vocab": {**TINY["model"]["vocab"], "▁": 500}}
    tokens = tokenizer(pre_tokenizer=metaspace, model=model)
    for pieces in (("a", "<think>", "b"), ("<think>", "a", "</think>", "b")):
        built = prompt(*pieces)
        assert tokens.prompt_tokenizer.encode(built) == tokens.encode(built.text)


@pytest.mark.parametrize("strips", [{"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}])
def test_special_tokens_swallow_the_white_space_that_they_swallow_in_whole_texts(strips: dict[str, bool]) -> None:
    tokens = tokenizer(added_tokens=added(**strips))
    built = prompt(" a \n", "<think>", "\n b ", "</think>", " ", "<think>", " c")
    assert tokens.prompt_tokenizer.encode(built) == tokens.encode(built.text)


def test_a_model_that_knows_a_special_spelling_as_a_word_does_not_use_it_for_typed_text() -> None:
    tokens = tokenizer(model={**TINY["model"], "ignore_merges": True})
    for pieces in (["<think>"], ["<think>", "</think><think>"]):
        built = Prompt()
        built.push_special("</think>")
        for piece in pieces:
            built.push_text(piece)
        ids = tokens.prompt_tokenizer.encode(built)
        assert not set(ids[1:]) & tokens.added_spellings.keys()
        assert text_of(tokens, ids[1:]) == "".join(pieces)


def test_byte_level_tokens_are_the_bytes_they_stand_for() -> None:
    tokens = tokenizer()
    assert [tokens.token_bytes(byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert tokens.token_bytes(264) == b" w"
    assert tokens.token_bytes(265) == "你".encode()[:2]


def test_added_tokens_are_their_spelling_and_unknown_ids_are_nothing() -> None:
    tokens = tokenizer()
    assert tokens.token_bytes(THINK) == b"<think>"
    assert tokens.added_spellings[THINK] == "<think>"
    assert tokens.token_bytes(10**6) == b""


def sentencepiece() -> Tokenizer:
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "▁": 257, "a": 258, "▁a": 259}
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return tokenizer(
        added_tokens=[],
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
        model={**TINY["model"], "byte_fallback": True, "unk_token": "<unk>", "vocab": vocab, "merges": [["▁", "a"]]},
    )


def test_byte_fallback_tokens_are_one_byte_each() -> None:
    tokens = sentencepiece()
    ids = tokens.encode("é")
    assert b"".join(map(tokens.token_bytes, ids)) == "é".encode()
    assert [len(tokens.token_bytes(token)) for token in ids] == [1, 1]


def test_metaspace_tokens_begin_with_a_space() -> None:
    assert sentencepiece().token_bytes(259) == b" a"
    assert sentencepiece().token_bytes(258) == b"a"


def test_word_pieces_are_joined_and_words_begin_with_a_space() -> None:
    tokens = tokenizer(
        added_tokens=[],
        pre_tokenizer={"type": "Whitespace"},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": False},
        model={
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[UNK]": 0, "play": 1, "##ing": 2, "on": 3},
        },
    )
    assert b"".join(map(tokens.token_bytes, tokens.encode("playing on"))) == b" playing on"


def test_loading_fails_with_a_runtime_error_and_wrong_types_with_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        Tokenizer.from_file(str(tmp_path / "none.json"))
    for text in ("{", "{}"):
        with pytest.raises(RuntimeError):
            Tokenizer.from_str(text)
    with pytest.raises(TypeError):
        Tokenizer.from_str(b"{}")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Tokenizer()


def test_a_file_gives_the_same_tokenizer_as_its_text(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tiny_tokenizer_json(), encoding="utf-8")
    assert Tokenizer.from_file(str(path)).encode("hello <think>") == tokenizer().encode("hello <think>")
