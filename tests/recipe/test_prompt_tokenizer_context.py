"""Stretches that are not independent: prompts beside encoding the whole text with the `tokenizers` package."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.conversation import Conversation, UserMessage
from recipe.encoding.chat_template import ChatTemplateEncoding
from recipe.encoding.tokenizer import Tokenizer
from recipe.prompt import Prompt

PREPEND = {"type": "Prepend", "prepend": "▁"}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
WORDS = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁b", "ab", "▁ab", "▁▁", "\n"]
MERGES = [["▁", "a"], ["▁", "b"], ["a", "b"], ["▁a", "b"], ["▁", "ab"], ["▁", "▁"]]
TOKEN = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def sequence(*normalizers: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(normalizers)}


def tokenizer(
    *tokens: dict[str, Any], normalizer: dict[str, Any] | None = None, pre: dict[str, Any] | None = None
) -> Tokenizer:
    """A small model like Llama's, with the given added tokens."""
    added = [{**TOKEN, "id": len(WORDS) + index, **token} for index, token in enumerate(tokens)]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": {word: index for index, word in enumerate(WORDS)},
        "merges": MERGES,
    }
    data = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer}
    data |= {"pre_tokenizer": pre, "post_processor": None, "decoder": None, "model": model}
    return Tokenizer.from_str(json.dumps(data))


def token(content: str, **changes: Any) -> dict[str, Any]:
    return {"content": content, **changes}


# Each kind after the model family whose tokenizer.json has it.
TOKENIZERS = {
    "llama-2 of today": tokenizer(token("<s>"), token("</s>"), pre=METASPACE),
    "llama-2 legacy": tokenizer(token("<s>"), token("</s>"), normalizer=sequence(PREPEND, REPLACE)),
    "mistral": tokenizer(token("<s>"), token("[INST]"), normalizer=sequence(PREPEND, REPLACE), pre=METASPACE),
    "phi-3": tokenizer(
        token("<s>"),
        token("<|user|>", rstrip=True),
        token("<|end|>", rstrip=True),
        normalizer=sequence(PREPEND, REPLACE),
    ),
    "roberta": tokenizer(token("<s>"), token("<mask>", lstrip=True), normalizer=REPLACE),
    "both sides": tokenizer(token("<s>", lstrip=True, rstrip=True), token("</s>"), pre=METASPACE),
    "stripped text": tokenizer(token("<s>"), token("</s>"), normalizer=sequence(STRIP, REPLACE)),
    "normalized": tokenizer(token("<s>", normalized=True), token("</s>"), normalizer=sequence(REPLACE)),
    "normalized, stripped text": tokenizer(
        token("<s>", normalized=True), token("</s>"), normalizer=sequence(STRIP, REPLACE)
    ),
    "normalized, strips": tokenizer(
        token("<s>", normalized=True, lstrip=True, rstrip=True), token("</s>"), normalizer=sequence(REPLACE)
    ),
}
TEXTS = st.lists(
    st.sampled_from(["a", "b", "ab", " ", "  ", "\n", "\t", "é", "\u00a0", "\x1f", "▁", "\u3000"]), max_size=5
)


def prompt(tokens: Tokenizer, pieces: list[str]) -> Prompt:
    built = Prompt()
    for piece in pieces:
        (built.push_special if piece in tokens.added_spellings.values() else built.push_text)(piece)
    return built


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_prompt_has_the_ids_of_its_whole_text(name: str) -> None:
    tokens = TOKENIZERS[name]
    pieces = st.one_of(TEXTS.map("".join), st.sampled_from(sorted(tokens.added_spellings.values())))

    @settings(max_examples=150, deadline=None)
    @given(st.lists(pieces, max_size=7))
    def holds(parts: list[str]) -> None:
        built = prompt(tokens, parts)
        whole = tokens.encode(built.text)
        assert tokens.prompt_tokenizer.encode(built) == whole
        assert tokens.prompt_tokenizer.encode(built) == whole

    holds()


@pytest.mark.parametrize("text", ["a", " a", "a ", ".", "<", "x>", "é", "_", "  ", "1"])
def test_a_whole_word_token_of_a_template_is_one_where_it_touches_no_word(text: str) -> None:
    tokens = tokenizer(token("<s>"), token("</s>"), token("<x>", single_word=True))
    encoding = ChatTemplateEncoding("a<x>.<x>{{ messages[0].content }}<x> <x></s><x>b<x>", tokens)
    conversation = Conversation([UserMessage(text)])
    whole = tokens.encode(encoding.render_conversation(conversation).prompt)
    assert encoding.encode(conversation) == whole
    assert 0 < whole.count(tokens.inner.token_to_id("<x>")) < 6


NORMALIZED_LLAMA = tokenizer(
    token("<s>", normalized=True), token("</s>", normalized=True), token("[X]"), normalizer=sequence(PREPEND, REPLACE)
)


@pytest.mark.parametrize(
    "pieces",
    [
        ["<s>", "a b"],
        ["<s>", " a"],
        ["<s>", "a ", "</s>", "b"],
        ["a  ", "<s>", "b"],
        [" ", "<s>", "b"],
        ["[X]", "<s>", "a ", "<s>", "[X]", "b"],
        ["[X]", "a", "[X]", "b ", "</s>"],
    ],
)
def test_a_normalized_token_does_not_begin_a_new_text(pieces: list[str]) -> None:
    """Llama-2's first tokenizer.json: its tokens are looked for with the mark of a space in front of them."""
    built = prompt(NORMALIZED_LLAMA, pieces)
    assert NORMALIZED_LLAMA.prompt_tokenizer.encode(built) == NORMALIZED_LLAMA.encode(built.text)


def test_a_normalized_token_stays_special_where_its_spelling_would_not_be_found() -> None:
    ids = NORMALIZED_LLAMA.prompt_tokenizer.encode(prompt(NORMALIZED_LLAMA, ["a", "</s>", "b"]))
    end = NORMALIZED_LLAMA.inner.token_to_id("</s>")
    assert ids == [WORDS.index("▁a"), end, WORDS.index("b")]
    assert end not in NORMALIZED_LLAMA.encode("a</s>b")
