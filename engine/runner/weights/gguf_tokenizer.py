"""GGUF vocabulary -> the text of a tokenizer.json.

GGUF stores a byte-level BPE as tokens, merges and the name of a pre-tokenizer (`tokenizer.ggml.pre`). The names in
the table below are built exactly as the models' own tokenizers are; a name that is not there is refused, since a
guess would tokenise almost right. A SentencePiece BPE needs no name.
"""

from __future__ import annotations

import json
from typing import Any

from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.gguf_file import GgufFile
from engine.runner.weights.gguf_sentencepiece import sentencepiece_parts

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_ADDED = (_UNKNOWN, _CONTROL, _USER_DEFINED)

_CONTRACTIONS_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sequence(*splits: dict[str, Any], use_regex: bool = False) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [*splits, _byte_level(use_regex)]}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _words(digits: str) -> dict[str, Any]:
    return _split(f"{_CONTRACTIONS_WORDS}|{digits}|{_PUNCTUATION_SPACES}")


_LLAMA3 = {"pre_tokenizer": _sequence(_words(r"\p{N}{1,3}")), "ignore_merges": True, "add_bos": True}
_QWEN2 = {"pre_tokenizer": _sequence(_words(r"\p{N}")), "normalizer": {"type": "NFC"}}
_TEKKEN = {"pre_tokenizer": _sequence(_split(_TEKKEN_WORDS)), "ignore_merges": True, "add_bos": True}
_DEEPSEEK_V3 = {"pre_tokenizer": _sequence(*map(_split, (r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK_WORDS)))}
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": {"pre_tokenizer": _byte_level(True)},
    "smollm": {"pre_tokenizer": _sequence({"type": "Digits", "individual_digits": True}, use_regex=True)},
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "tekken": _TEKKEN,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "deepseek-v3": _DEEPSEEK_V3,
}


def tokenizer_json_from_gguf(file: GgufFile) -> str:
    """The tokenizer as the text of a tokenizer.json; raises `ModelLoadError` for one that is no known BPE."""
    tokens, types = file.metadata["tokenizer.ggml.tokens"], _token_types(file)
    parts = sentencepiece_parts(file, types) if _is_sentencepiece(file) else _byte_level_parts(file, types)
    added = [index for index, kind in enumerate(types) if kind in _ADDED]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(index, tokens[index], types[index] != _USER_DEFINED) for index in added],
        "post_processor": None,
        **parts,
    }
    return json.dumps(document, ensure_ascii=False)


def adds_bos(file: GgufFile) -> bool:
    """Whether a prompt that is no conversation starts with the BOS token."""
    default = _is_sentencepiece(file) or _recipe(file).get("add_bos", False)
    return bool(file.metadata.get("tokenizer.ggml.add_bos_token", default))


def _is_sentencepiece(file: GgufFile) -> bool:
    return bool(file.metadata.get("tokenizer.ggml.model") == "llama")


def _byte_level_parts(file: GgufFile, types: list[int]) -> dict[str, Any]:
    recipe, tokens = _recipe(file), file.metadata["tokenizer.ggml.tokens"]
    return {
        "normalizer": recipe.get("normalizer"),
        "pre_tokenizer": recipe["pre_tokenizer"],
        "decoder": _byte_level(True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": recipe.get("ignore_merges", False),
            "vocab": {token: index for index, token in enumerate(tokens[: _model_vocab_size(types)])},
            "merges": file.metadata.get("tokenizer.ggml.merges", []),
        },
    }


def _recipe(file: GgufFile) -> dict[str, Any]:
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelLoadError(
            f"{file.path} has a tokenizer of kind {kind!r}; from GGUF only BPE can be built ('gpt2', 'llama'): "
            "use the model's Hugging Face directory"
        )
    name = file.metadata.get("tokenizer.ggml.pre")
    if name not in _PRE_TOKENIZERS:
        raise ModelLoadError(
            f"{file.path} has the pre-tokenizer {name!r}; supported: {', '.join(sorted(_PRE_TOKENIZERS))}: "
            "use the model's Hugging Face directory"
        )
    return _PRE_TOKENIZERS[name]


def _token_types(file: GgufFile) -> list[int]:
    tokens, types = file.metadata["tokenizer.ggml.tokens"], file.metadata.get("tokenizer.ggml.token_type", [])
    if len(types) != len(tokens):
        raise ModelLoadError(f"{file.path} has {len(tokens)} tokens but {len(types)} token types; convert it again")
    return list(types)


def _model_vocab_size(types: list[int]) -> int:
    """Added tokens at the end of the vocabulary, and unused ones behind them, are no words of the BPE itself."""
    size = len(types)
    while size and types[size - 1] == _UNUSED:
        size -= 1
    while size and types[size - 1] in _ADDED:
        size -= 1
    return size


def _added_token(index: int, content: str, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return {"id": index, "content": content, **flags}
