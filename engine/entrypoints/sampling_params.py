"""Sampling settings as offline callers write them: those of the engine, and those of the text, which it never sees."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core import sampling_params as core


class SamplingParams(core.SamplingParams, frozen=True):
    """The engine's `SamplingParams` and what concerns the text that its tokens make.

    stop: strings that end the output; the text ends before the first one that occurs. They are looked for in the text
    as it grows, and the sequence is freed with the token that completes one.
    bad_words: texts that the output must not contain; the vocabulary's tokens for them join `bad_words_token_ids`.
    skip_special_tokens: leave special tokens out of the text (not out of the token IDs).
    """

    stop: str | Sequence[str] = ()
    bad_words: Sequence[str] = ()
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        core.SamplingParams.__post_init__(self)
        for name, texts in (("stop", self.stop_strings), ("bad_words", self.bad_words)):
            _require_texts(name, texts)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def _require_texts(name: str, texts: Sequence[str]) -> None:
    wrong = [texts] if isinstance(texts, str) else [text for text in texts if not isinstance(text, str) or not text]
    if wrong:
        raise ValueError(f"{name} must hold strings that are not empty. Given: {wrong[0]!r:.40}")
