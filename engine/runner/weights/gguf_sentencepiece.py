"""A SentencePiece BPE of a GGUF file (Llama 2, Mistral, Phi-3) in the vocabulary of a tokenizer.json.

SentencePiece has no list of merges: whatever two neighbours make a word of the vocabulary may be joined, the word with
the highest score first. The list of merges that does the same holds every way to put each word together, in the order
of the words' scores. Characters that are no word are spelled in bytes.
"""

from __future__ import annotations

from typing import Any

from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.gguf_file import GgufFile

_SPACE = "▁"
_NORMAL, _UNKNOWN, _BYTE = 1, 2, 6
_NUM_BYTES = 256


def sentencepiece_parts(file: GgufFile, types: list[int]) -> dict[str, Any]:
    """`model`, `normalizer`, `pre_tokenizer` and `decoder`; raises `ModelLoadError` without scores or bytes."""
    tokens, scores = file.metadata["tokenizer.ggml.tokens"], file.metadata.get("tokenizer.ggml.scores", [])
    if len(scores) != len(tokens) or types.count(_BYTE) != _NUM_BYTES or _UNKNOWN not in types:
        raise ModelLoadError(
            f"{file.path} has a SentencePiece vocabulary without scores, bytes or unknown token, of which no tokenizer "
            "can be built: use the model's Hugging Face directory"
        )
    prefix = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    return {
        "normalizer": _sequence("normalizers", *([{"type": "Prepend", "prepend": _SPACE}] if prefix else []), spaces),
        "pre_tokenizer": None,
        "decoder": _sequence(
            "decoders",
            {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
        ),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": tokens[types.index(_UNKNOWN)],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": _merges(
                {token: score for token, score, kind in zip(tokens, scores, types, strict=True) if kind == _NORMAL}
            ),
        },
    }


def _merges(scores: dict[str, float]) -> list[list[str]]:
    """Pairs of words that make a word, those of the highest score first."""
    ordered = sorted((word for word in scores if len(word) > 1), key=lambda word: -scores[word])
    return [
        [word[:cut], word[cut:]]
        for word in ordered
        for cut in range(1, len(word))
        if word[:cut] in scores and word[cut:] in scores
    ]


def _sequence(name: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", name: list(steps)}
