"""What one step gave one sequence: tokens, or its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.core.runner import TokenLogprobs
from engine.core.sequence import Sequence
from recipe.stream.inference import InferenceFinishReason


@dataclass(slots=True)
class SequenceOutput:
    """An update on `sequence`, which is finished when `finish_reason` or `error` is set.

    `token_ids` never holds the stop token: its spelling must not be shown. It was generated all the same, so
    `num_hidden_tokens` counts it, and completion counts are the sum of both, as elsewhere in the field.
    `logprobs` has one entry a token ID, or is None when they were not asked for. Without tokens and without an end,
    the output says that the sequence was admitted: it has its first blocks, and `num_cached_tokens` is known.
    """

    sequence: Sequence
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    num_hidden_tokens: int = 0
    finish_reason: InferenceFinishReason | None = None
    error: Exception | None = None

    @property
    def is_admission(self) -> bool:
        return not (self.token_ids or self.is_last)

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def extend(self, later: SequenceOutput) -> None:
        """Append what a later step gave the same sequence."""
        self.token_ids.extend(later.token_ids)
        if later.logprobs is not None:
            self.logprobs = (self.logprobs or []) + later.logprobs
        self.num_hidden_tokens += later.num_hidden_tokens
        self.finish_reason, self.error = later.finish_reason, later.error
