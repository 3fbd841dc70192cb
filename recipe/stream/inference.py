"""The seam between an engine and the stream: what one step of a backend produced.

A stream is at most one `ready` chunk, then `text` or `tokens` chunks, then one `finish` chunk. An engine makes
one `tokens` chunk a step and sequence, so chunks are small objects with slots, checked once when they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from operator import index
from typing import Literal, TypeVar

import msgspec

_MAX_TOKEN_ID = 2**32 - 1
_TOKEN_IDS = range(_MAX_TOKEN_ID + 1)
_MAX_COUNT = 2**64 - 1
_First = TypeVar("_First")
_Second = TypeVar("_Second")

TokenLogprob = tuple[float, list[tuple[int, float]]]
"""The log probability of one token, and the most likely alternatives as (token ID, log probability)."""


class InferenceFinishReason(Enum):
    """Why the backend stopped; the protocol's finish reason also depends on what was parsed."""

    __hash__ = object.__hash__  # that of Enum is written in Python

    Stop = 0
    Length = 1
    ContentFilter = 2

    def __int__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"InferenceFinishReason.{self.name}"


class PromptUsage(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Prompt-side token counts from the backend."""

    prompt_tokens: int = 0
    """Tokens of the prompt, images at their real size."""
    prompt_cache_hit_tokens: int = 0
    """How many of them came from the prefix cache."""

    def __post_init__(self) -> None:
        prompt, hits = self.prompt_tokens, self.prompt_cache_hit_tokens
        if type(prompt) is type(hits) is int and 0 <= prompt <= _MAX_COUNT and 0 <= hits <= _MAX_COUNT:
            return
        msgspec.structs.force_setattr(self, "prompt_tokens", count(prompt))
        msgspec.structs.force_setattr(self, "prompt_cache_hit_tokens", count(hits))


class InferenceChunk(msgspec.Struct, eq=False):
    """One backend update, constructed with `ready`, `text`, `tokens`, or `finish`.

    Properties that do not belong to the chunk's kind are `None`.
    """

    kind: Literal["ready", "text", "tokens", "finish"]
    content: str | None = None
    token_ids: list[int] | None = None
    """The token IDs of a `tokens` chunk."""
    logprobs: list[TokenLogprob] | None = None
    """One entry a token ID of a `tokens` chunk, or `None` when they were not asked for."""
    finish_reason: InferenceFinishReason | None = None
    prompt_usage: PromptUsage | None = None
    token_count: int | None = None
    """The number of tokens this chunk's content accounts for; text chunks, and finish chunks that hide some."""
    system_fingerprint: str | None = None

    @staticmethod
    def ready(*, prompt_usage: PromptUsage | None = None, system_fingerprint: str | None = None) -> InferenceChunk:
        """The prompt has been taken in. Counts only as the first chunk of a stream."""
        if prompt_usage is not None and not isinstance(prompt_usage, PromptUsage):
            raise TypeError(f"prompt_usage must be a PromptUsage, not {type(prompt_usage).__name__}")
        if system_fingerprint is not None:
            _check_text(system_fingerprint, "system_fingerprint")
        return InferenceChunk(
            "ready", prompt_usage=prompt_usage or PromptUsage(), system_fingerprint=system_fingerprint
        )

    @staticmethod
    def text(content: str, token_count: int = 0) -> InferenceChunk:
        """Construct a text chunk from `content` and the number of tokens it accounts for."""
        _check_text(content, "content")
        return InferenceChunk("text", content, token_count=count(token_count))

    @staticmethod
    def tokens(
        token_ids: Sequence[int],
        logprobs: Sequence[tuple[float, Sequence[tuple[int, float]]]] | None = None,
    ) -> InferenceChunk:
        """Construct a chunk from the token IDs of one backend output.

        `logprobs` holds one `(logprob, top_logprobs)` pair per token ID.
        """
        ids = _checked_ids(token_ids)
        return InferenceChunk("tokens", None, ids, None if logprobs is None else _checked_logprobs(logprobs))

    @staticmethod
    def finish(
        finish_reason: InferenceFinishReason, *, prompt_usage: PromptUsage | None = None, token_count: int = 0
    ) -> InferenceChunk:
        """The last chunk. `prompt_usage`, when known only now, replaces what `ready` said in the final usage.

        `token_count` is the number of tokens that were generated and are in no other chunk: the stop token has no text.
        """
        if not isinstance(finish_reason, InferenceFinishReason):
            raise TypeError(f"finish_reason must be an InferenceFinishReason, not {type(finish_reason).__name__}")
        if prompt_usage is not None and not isinstance(prompt_usage, PromptUsage):
            raise TypeError(f"prompt_usage must be a PromptUsage, not {type(prompt_usage).__name__}")
        hidden = count(token_count) or None
        return InferenceChunk("finish", finish_reason=finish_reason, prompt_usage=prompt_usage, token_count=hidden)


def count(value: int) -> int:
    """The integer `value`; TypeError for no integer, OverflowError for one that is not a u64."""
    return value if type(value) is int and 0 <= value <= _MAX_COUNT else _checked(value, _MAX_COUNT)


def _checked(value: int, largest: int) -> int:
    """The integer `value`; TypeError for no integer, OverflowError outside `[0, largest]`."""
    number = index(value)
    if not 0 <= number <= largest:
        raise OverflowError(f"{number} is outside [0, {largest}]")
    return number


def _checked_ids(token_ids: Sequence[int]) -> list[int]:
    if type(token_ids) is list and len(token_ids) == 1 and type(token_ids[0]) is int and token_ids[0] in _TOKEN_IDS:
        return [token_ids[0]]  # what a step without speculation gives
    if isinstance(token_ids, str) or not isinstance(token_ids, Sequence):
        raise TypeError(f"token_ids must be a sequence of integers, not {type(token_ids).__name__}")
    return [_checked(token_id, _MAX_TOKEN_ID) for token_id in token_ids]


def _check_text(value: str, name: str) -> None:
    """TypeError for no str, UnicodeEncodeError for a lone surrogate."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value.isascii():
        value.encode()


def _checked_logprobs(logprobs: Sequence[tuple[float, Sequence[tuple[int, float]]]]) -> list[TokenLogprob]:
    checked: list[TokenLogprob] = []
    for pair in logprobs:
        logprob, top = _pair(pair)
        checked.append((_real(logprob), [_checked_alternative(entry) for entry in top]))
    return checked


def _checked_alternative(entry: tuple[int, float]) -> tuple[int, float]:
    token_id, logprob = _pair(entry)
    return _checked(token_id, _MAX_TOKEN_ID), _real(logprob)


def _real(value: float) -> float:
    if isinstance(value, str | bytes | bytearray):
        raise TypeError(f"must be real number, not {type(value).__name__}")
    return float(value)


def _pair(value: tuple[_First, _Second]) -> tuple[_First, _Second]:
    if not isinstance(value, tuple):
        raise TypeError(f"log probabilities must be tuples, not {type(value).__name__}")
    if len(value) != 2:
        raise ValueError(f"expected tuple of length 2, but got tuple of length {len(value)}")
    return value
