"""How the next token of one request is chosen, in the order in which the settings apply."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 20
_MAX_U32 = 2**32 - 1
_NUMBERS = (int, float)


class SamplingParams(msgspec.Struct, frozen=True):
    """Sampling settings of one request; raises `ValueError` naming the field for values out of range.

    Order of application to the raw logits: repetition, presence and frequency penalties; `logit_bias`;
    `min_tokens` (no stop token before them); `bad_words_token_ids`; the grammar's bitmask; temperature; `top_k`;
    `top_p`; `min_p`; one seeded draw. `temperature` 0 is greedy. `logprobs` asks for the log probability of the chosen
    token and of that many alternatives (0..20), from the raw logits before all of the above; None asks for none.
    Generation ends at a token of `stop_token_ids`, at the model's EOS tokens unless `ignore_eos`, after
    `max_tokens`, or at the end of the context.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = {}
    min_tokens: int = 0
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if not self._has_plain_numbers():
            self._check_numbers()
        if self.seed is not None:
            _require_integer("seed", self.seed, 0, MAX_SEED)
        if self.logprobs is not None:
            _require_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens must be <= max_tokens ({self.max_tokens}). Given: {self.min_tokens}")
        for token_id, bias in self.logit_bias.items():
            _require_token_id("logit_bias", token_id)
            _require_number(f"logit_bias[{token_id}]", bias, lambda value: -100 <= value <= 100, "in [-100, 100]")
        for token_id in self.stop_token_ids:
            _require_token_id("stop_token_ids", token_id)
        for word in self.bad_words_token_ids:
            _require_bad_word(word)

    def _has_plain_numbers(self) -> bool:
        """Whether every number is within its range, seen in one look; a request in a thousand needs a second one."""
        return (
            type(self.max_tokens) is type(self.min_tokens) is type(self.top_k) is int
            and type(self.temperature) in _NUMBERS and type(self.top_p) in _NUMBERS and type(self.min_p) in _NUMBERS
            and type(self.repetition_penalty) in _NUMBERS
            and type(self.presence_penalty) in _NUMBERS and type(self.frequency_penalty) in _NUMBERS
            and 1 <= self.max_tokens <= _MAX_U32 and 0 <= self.min_tokens <= _MAX_U32 and 0 <= self.top_k <= _MAX_U32
            and 0 <= self.temperature < math.inf and 0 < self.top_p <= 1 and 0 <= self.min_p <= 1
            and 0 < self.repetition_penalty < math.inf
            and -2 <= self.presence_penalty <= 2 and -2 <= self.frequency_penalty <= 2
        )  # fmt: skip

    def _check_numbers(self) -> None:
        """Raise a `ValueError` for the first number that is none or out of range."""
        for name, (low, high) in _INTEGER_RANGES.items():
            _require_integer(name, getattr(self, name), low, high)
        for name, (accepts, allowed) in _NUMBER_RANGES.items():
            _require_number(name, getattr(self, name), accepts, allowed)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the token is the largest raw logit, and nothing is told of the others."""
        return (
            self.temperature == 0 and self.logprobs is None and not self.min_tokens and not self.logit_bias
            and not self.bad_words_token_ids and self.repetition_penalty == 1
            and self.presence_penalty == 0 and self.frequency_penalty == 0
        )  # fmt: skip

    @property
    def named_token_ids(self) -> Iterator[tuple[str, int]]:
        """Every token ID the settings name, with its field: to be checked against a vocabulary."""
        yield from (("stop_token_ids", token_id) for token_id in self.stop_token_ids)
        yield from (("logit_bias", token_id) for token_id in self.logit_bias)
        yield from (("bad_words_token_ids", token_id) for word in self.bad_words_token_ids for token_id in word)


_INTEGER_RANGES: dict[str, tuple[int, int]] = {
    "max_tokens": (1, _MAX_U32),
    "min_tokens": (0, _MAX_U32),
    "top_k": (0, _MAX_U32),
}

_NUMBER_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: value >= 0, ">= 0"),
    "top_p": (lambda value: 0 < value <= 1, "in (0, 1]"),
    "min_p": (lambda value: 0 <= value <= 1, "in [0, 1]"),
    "repetition_penalty": (lambda value: value > 0, "> 0"),
    "presence_penalty": (lambda value: -2 <= value <= 2, "in [-2, 2]"),
    "frequency_penalty": (lambda value: -2 <= value <= 2, "in [-2, 2]"),
}


def _require_integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer in [{low}, {high}]. Given: {value!r:.40}")


def _require_number(name: str, value: Any, accepts: Callable[[float], bool], allowed: str) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not accepts(value):
        raise ValueError(f"{name} must be a number {allowed}. Given: {value!r:.40}")


def _require_token_id(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must hold token IDs >= 0. Given: {value!r:.40}")


def _require_bad_word(word: Sequence[int]) -> None:
    if not word:
        raise ValueError("bad_words_token_ids must hold no empty word")
    for token_id in word:
        _require_token_id("bad_words_token_ids", token_id)
