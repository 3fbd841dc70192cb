"""Tokenizers of the SentencePiece kind: spaces as ▁, bytes as tokens, markers among the added tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.grammar.vocabulary import Vocabulary
from tests.engine.grammar.following import accepts, compiled

WORDS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *'abdefghijmnrstu{}[]":,019', "▁a"]
MARKERS = ["[TOOL_CALLS]", "  "]


def added(token_id: int, content: str, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, "special": special, **flags}


def tokenizer_json() -> str:
    specials = [added(number, WORDS[number], True) for number in range(3)]
    markers = [added(len(WORDS) + number, text, False) for number, text in enumerate(MARKERS)]
    space = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    prepend = {"type": "Prepend", "prepend": "▁"}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "merges": []}
    decoders = [
        space,
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": specials + markers,
            "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]},
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {**model, "vocab": {word: number for number, word in enumerate(WORDS)}},
        }
    )


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(tokenizer_json(), len(WORDS) + 8, [2])


def test_tokens_spell_what_they_add_to_a_text(vocabulary: Vocabulary) -> None:
    spelled = [vocabulary.bytes_of(WORDS.index(word)) for word in ("▁a", "<0x0A>", "{", "▁")]
    assert spelled == [b" a", b"\n", b"{", b" "]
    assert b"".join(map(vocabulary.bytes_of, vocabulary.encode(b' {"a": 1}\n'))) == b' {"a": 1}\n'


def test_markers_are_the_added_tokens_that_hold_more_than_whitespace(vocabulary: Vocabulary) -> None:
    marker = vocabulary.marker_id("[TOOL_CALLS]")
    assert marker == len(WORDS) and vocabulary.is_marker(marker) and vocabulary.bytes_of(marker) == b""
    assert vocabulary.marker_id("  ") is None
    assert vocabulary.symbol("[TOOL_CALLS]") == f"<[{marker}]>" and vocabulary.symbol("[ARGS]") == '"[ARGS]"'
    assert marker not in vocabulary.encode(b"[TOOL_CALLS]")


def test_json_and_calls_are_followed(vocabulary: Vocabulary) -> None:
    assert accepts(compiled(vocabulary, "json"), vocabulary.encode(b'{"a": [1, 9]}'), stop_id=2)
    tools = json.dumps([{"type": "function", "function": {"name": "f", "parameters": {}}}])
    grammar = compiled(vocabulary, "tool_call", tools, tool_markup="mistral")
    marker = vocabulary.marker_id("[TOOL_CALLS]")
    assert marker is not None
    call = [*vocabulary.encode(b"see "), marker, *vocabulary.encode(b'[{"name": "f", "arguments": {"a": 1}}]')]
    assert accepts(grammar, call, stop_id=2)


def test_added_tokens_past_the_logits_are_not_there() -> None:
    narrow = Vocabulary(tokenizer_json(), len(WORDS), [2])
    assert narrow.marker_id("[TOOL_CALLS]") is None
    assert narrow.tokenizer.vocab_size == len(WORDS)
