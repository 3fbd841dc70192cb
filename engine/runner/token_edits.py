"""Which logits change before a token is drawn, and how: penalties, biases and bans, gathered over a whole step.

All edits touch a few tokens of a few rows, and are told as flat indices over the batch's logits, in the order that
`SamplingParams` documents. Whoever samples applies them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import Any

import numpy as np

from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence
from engine.core.sequence import Sequence


class TokenCounts:
    """How often each token occurs in a sequence's completion; tokens of its prompt alone are there with 0.

    Kept in `sequence.sampler_state`, since a sequence only grows.
    """

    def __init__(self, sequence: Sequence) -> None:
        params = sequence.sampling_params
        with_prompt = params.repetition_penalty != 1.0
        self._counts = dict.fromkeys(sequence.prompt_token_ids if with_prompt else (), 0)
        self._seen = sequence.num_prompt_tokens

    def update(self, sequence: Sequence) -> dict[int, int]:
        """Count the tokens that are new since the last call; the counts by token."""
        counts = self._counts
        for token in sequence.token_ids[self._seen :]:
            counts[token] = counts.get(token, 0) + 1
        self._seen = len(sequence.token_ids)
        return counts


class TokenEdits:
    """The edits of one step, for rows of `[R, vocab_size]` logits."""

    def __init__(self, items: Items[ScheduledSequence], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._penalised: list[tuple[int, dict[int, int], SamplingParams]] = []
        self._biases: list[tuple[int, float]] = []  # (flat index, addition)
        self._bans: list[int] = []  # flat indices
        for row, item in enumerate(items):
            if _has_edits(item.sequence.sampling_params):
                self._collect(row, item.sequence)

    def _collect(self, row: int, sequence: Sequence) -> None:
        params, offset = sequence.sampling_params, row * self._vocab_size
        if _has_penalties(params):
            if sequence.sampler_state is None:
                sequence.sampler_state = TokenCounts(sequence)
            self._penalised.append((offset, sequence.sampler_state.update(sequence), params))
        self._biases += [
            (offset + token, bias) for token, bias in params.logit_bias.items() if 0 <= token < self._vocab_size
        ]
        self._bans += [offset + token for token in _banned(sequence) if 0 <= token < self._vocab_size]

    @property
    def penalties(self) -> tuple[Any, Any, Any]:
        """Flat indices int64, by what repetition divides (or multiplies) and what is then subtracted, float32 `[n]`."""
        places, repetition, subtracted = [], [], []
        for offset, counts, params in self._penalised:
            tokens = np.fromiter(counts.keys(), np.int64, len(counts))
            number = np.fromiter(counts.values(), np.float32, len(counts))
            inside = tokens < self._vocab_size
            tokens, number = tokens[inside], number[inside]
            places.append(tokens + offset)
            repetition.append(np.full(len(tokens), params.repetition_penalty, np.float32))
            subtracted.append(params.presence_penalty * (number > 0) + params.frequency_penalty * number)
        return _joined(places, np.int64), _joined(repetition, np.float32), _joined(subtracted, np.float32)

    @property
    def additions(self) -> dict[int, float]:
        """What is added, after the penalties, to the logits at flat indices: biases, and -inf for bans."""
        return {**dict(self._biases), **dict.fromkeys(self._bans, -math.inf)}


def _has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def _has_edits(params: SamplingParams) -> bool:
    return bool(params.logit_bias or params.min_tokens or params.bad_words_token_ids or _has_penalties(params))


def _banned(sequence: Sequence) -> Iterable[int]:
    """Stop tokens before `min_tokens`, and tokens that would complete a bad word in the completion."""
    params = sequence.sampling_params
    if sequence.num_completion_tokens < params.min_tokens:
        yield from sequence.stop_ids
    for word in params.bad_words_token_ids:
        if _ends_with(sequence, word[:-1]):
            yield word[-1]


def _ends_with(sequence: Sequence, tokens: Items[int]) -> bool:
    start = len(sequence.token_ids) - len(tokens)
    return start >= sequence.num_prompt_tokens and sequence.token_ids[start:] == list(tokens)


def _joined(parts: list[Any], dtype: Any) -> Any:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype)
