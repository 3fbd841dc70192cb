"""Prompts of an offline run as they may be given, and their texts to token IDs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, TypeAlias

from engine.backend import RequestRefusedError
from engine.runner.weights.model_files import ModelFiles
from recipe.encoding.tokenizer import Tokenizer

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""A text, token IDs, or either in an object: `{"prompt": ...}`, `{"prompt_token_ids": ...}`."""


def read_prompts(prompts: Any) -> list[str | list[int]]:
    """The prompts as texts and lists of token IDs, also where a single one was given.

    Raises `RequestRefusedError`, naming the prompt that is neither.
    """
    is_one = isinstance(prompts, str | Mapping) or (len(prompts) > 0 and hasattr(prompts[0], "__index__"))
    return [_text_or_ids(place, prompt) for place, prompt in enumerate([prompts] if is_one else prompts)]


class PromptTexts:
    """Encodes texts with the whole vocabulary, behind the BOS token where the model was trained with one."""

    def __init__(self, tokenizer: Tokenizer, files: ModelFiles) -> None:
        self._tokenizer = tokenizer.inner
        spelling = files.special_tokens.get("bos_token") if files.add_bos else None
        self._bos_token_id = None if spelling is None else self._tokenizer.token_to_id(spelling)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token IDs of each text; they are encoded together, on all cores."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [self._with_bos(encoding.ids) for encoding in encodings]

    def _with_bos(self, token_ids: list[int]) -> list[int]:
        bos = self._bos_token_id
        return token_ids if bos is None or token_ids[:1] == [bos] else [bos, *token_ids]


def _text_or_ids(place: int, prompt: Any) -> str | list[int]:
    if isinstance(prompt, Mapping):
        prompt = prompt.get("prompt_token_ids", prompt.get("prompt"))
    if isinstance(prompt, str):
        return prompt
    try:
        return [index(token_id) for token_id in prompt]
    except TypeError:
        kind = type(prompt).__name__
        raise RequestRefusedError(f"prompt {place} must be a text or a list of token IDs. Given: {kind}") from None
