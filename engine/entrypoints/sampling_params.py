"""Sampling settings as offline callers write them: those of the engine, and those of the text, which it never sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.core import sampling_params as core


@dataclass(frozen=True, slots=True)
class SamplingParams(core.SamplingParams):
    """The engine's `SamplingParams` and what concerns the text that its tokens make.

    stop: strings that end the output; the text ends before the first one that occurs. They are looked for in the text
    as it grows, and the sequence is freed with the token that completes one.
    skip_special_tokens: leave special tokens out of the text (not out of the token IDs).
    """

    stop: str | Sequence[str] = ()
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        core.SamplingParams.__post_init__(self)
        for text in self.stop_strings:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop must hold strings that are not empty. Given: {text!r:.40}")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
