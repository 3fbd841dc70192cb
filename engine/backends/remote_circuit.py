"""A circuit breaker: after some failures in a row an engine is left alone for a while, then tried with one request.

closed ── failures ──► open ── cooldown ──► half-open ── success ──► closed
                         ▲                      └─── failure, with a longer cooldown ──► open
"""

from __future__ import annotations

MAX_FAILURES = 3
FIRST_COOLDOWN_S = 1.0
MAX_COOLDOWN_S = 30.0


class Circuit:
    """Times are `time.monotonic()` seconds."""

    def __init__(self) -> None:
        self._failures = 0
        self._cooldown_s = FIRST_COOLDOWN_S
        self._opened_at: float | None = None
        self._is_on_trial = False

    def allows(self, now: float) -> bool:
        """Whether a request may go through."""
        if self._opened_at is None:
            return True
        return not self._is_on_trial and now - self._opened_at >= self._cooldown_s

    @property
    def is_open(self) -> bool:
        return self._opened_at is not None

    def state(self, now: float) -> str:
        """One of `CIRCUIT_STATES`."""
        if self._opened_at is None:
            return "closed"
        return "half-open" if self._is_on_trial or self.allows(now) else "open"

    def begin(self) -> None:
        """A request goes through; the only one where the circuit is half-open."""
        self._is_on_trial = self._opened_at is not None

    def succeed(self) -> None:
        self._failures, self._cooldown_s, self._opened_at, self._is_on_trial = 0, FIRST_COOLDOWN_S, None, False

    def abandon(self) -> None:
        """A request ended without telling anything about the engine."""
        self._is_on_trial = False

    def fail(self, now: float) -> None:
        self._failures += 1
        if self._opened_at is not None and self._is_on_trial:
            self._cooldown_s = min(2 * self._cooldown_s, MAX_COOLDOWN_S)
            self._opened_at = now
        elif self._failures >= MAX_FAILURES and self._opened_at is None:
            self._opened_at = now
        self._is_on_trial = False
