"""How an output ended and what it cost, as the protocols report it."""

from typing import Literal, NamedTuple

FinishKind = Literal["stop", "length", "content_filter", "tool_calls"]


class FinishReason(NamedTuple):
    """Why the output ended; `stop_sequence` is the stop string that was met, if any (the kind is then `stop`)."""

    kind: FinishKind
    stop_sequence: str | None = None


class Usage(NamedTuple):
    """Token counts of a whole request; `reasoning_tokens` is None where thinking or a tokenizer is missing."""

    prompt_tokens: int
    prompt_cache_hit_tokens: int
    completion_tokens: int = 0
    reasoning_tokens: int | None = None

    @property
    def prompt_cache_miss_tokens(self) -> int:
        return max(0, self.prompt_tokens - self.prompt_cache_hit_tokens)
