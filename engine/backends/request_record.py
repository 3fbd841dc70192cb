"""What the metrics and the log learn about a request when it has left the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request's counts and times; the times are `time.monotonic()` seconds, None for what was never reached.

    `outcome` is "stop", "length", "cancelled", or the name of the error that ended it.
    """

    request_id: str
    outcome: str
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    submitted_at: float
    scheduled_at: float | None
    first_token_at: float | None
    ended_at: float

    @property
    def queue_s(self) -> float | None:
        """Seconds from submission to the first step."""
        return None if self.scheduled_at is None else self.scheduled_at - self.submitted_at

    @property
    def first_token_s(self) -> float | None:
        """Seconds from submission to the first token."""
        return None if self.first_token_at is None else self.first_token_at - self.submitted_at
