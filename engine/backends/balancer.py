"""Which engine gets a request: a pure policy over what each engine has under way, on two axes.

A decoding step costs an engine a share for every sequence in it and a share for every token of KV that its attention
reads, so an engine is full in two ways. A request goes where the sum of squares of both, each relative to its mean over
the engines, grows least. A short one adds little KV, so it goes where few sequences are, whatever their length; a long
one goes where the KV is short.

A favourite, the engine that has a request's beginning in its prefix cache, gets it as long as that leaves the balance
within bounds: the more of the prompt it has, the more it may be above the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FAVOURITE_SLACK = 0.5
"""How far above the mean an engine may be, on either axis, and still get what it has cached whole."""


@dataclass(frozen=True, slots=True)
class Load:
    """Sequences under way, and tokens of KV that they hold: prompts and what was generated so far."""

    requests: int = 0
    kv_tokens: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.requests + other.requests, self.kv_tokens + other.kv_tokens)

    def beyond(self, own: Load) -> Load:
        """What is left of this load without `own`: never less than nothing."""
        return Load(max(0, self.requests - own.requests), max(0, self.kv_tokens - own.kv_tokens))


@dataclass(frozen=True, slots=True)
class Favourite:
    """The engine, by its place in the loads, that has the first `cached_tokens` of the prompt."""

    index: int
    cached_tokens: int


def choose(loads: Sequence[Load], prompt_tokens: int, output_tokens: int, favourite: Favourite | None = None) -> int:
    """The place of the engine that gets a request of so many tokens, `output_tokens` being what is expected.

    Raises `ValueError` without engines. Of equally good ones it is the first.
    """
    if not loads:
        raise ValueError("there must be at least one engine to choose from")
    size = prompt_tokens + output_tokens
    mean_requests = (sum(load.requests for load in loads) + 1) / len(loads)
    mean_kv = max(1.0, (sum(load.kv_tokens for load in loads) + size) / len(loads))
    if favourite is not None and prompt_tokens:
        bound = 1 + FAVOURITE_SLACK * favourite.cached_tokens / prompt_tokens
        load = loads[favourite.index]
        if load.requests <= bound * mean_requests and load.kv_tokens <= bound * mean_kv:
            return favourite.index

    def growth(index: int) -> float:
        """By how much the sum of squares grows: (x + d)² - x² on each axis."""
        load = loads[index]
        requests = (2 * load.requests + 1) / mean_requests**2
        return requests + (2 * load.kv_tokens + size) * size / mean_kv**2

    return min(range(len(loads)), key=growth)
