"""Admission: whether a request may come in at all, decided before anything is allocated for it.

    admit ──► preparing ── submit ──► queued ── start ──► running ── release
    (headers)  (body, worker, grammar)  (waits in the engine)  (scheduled)

A permit lives exactly as long as its request and is counted in one of the three places. Beyond a limit the answer is
immediate: 429 when this client has too much under way, 503 when the server has, each with the time after which a
retry makes sense, from the rate at which requests have been leaving that place.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType

from engine.entrypoints.auth import ApiKey
from engine.entrypoints.errors import ApiError

MIN_RETRY_S, MAX_RETRY_S = 1.0, 300.0


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How many requests may be where at a time, and how many prompt tokens may wait; 0 means no limit."""

    max_requests: int = 0
    max_preparing: int = 0
    max_queued: int = 0
    max_queued_tokens: int = 0
    max_requests_per_key: int = 0


class Place(IntEnum):
    """Where a permit is counted."""

    PREPARING = 0
    QUEUED = 1
    RUNNING = 2


_PREPARING, _QUEUED, _RUNNING = Place


class ServiceRate:
    """How fast requests leave a place, from the `times` of the last departures, in seconds of the monotonic clock."""

    def __init__(self, window: int = 64) -> None:
        self.times: deque[float] = deque(maxlen=window)

    def seconds_for(self, number: int) -> float:
        """When `number` more will have left, in seconds from now; at least a second, also without a measurement."""
        if len(self.times) < 2:
            return MIN_RETRY_S
        seconds_each = (time.monotonic() - self.times[0]) / len(self.times)
        return min(MAX_RETRY_S, max(MIN_RETRY_S, seconds_each * number))


class Permit:
    """The right to be served, from admission to the end; a context manager that gives it back."""

    __slots__ = ("_admission", "key", "num_prompt_tokens", "place")

    def __init__(self, admission: Admission, key: ApiKey | None) -> None:
        self._admission = admission
        self.key = key
        self.num_prompt_tokens = 0
        self.place: Place | None = _PREPARING

    def submit(self, num_prompt_tokens: int) -> None:
        """The request goes to the engine now; raises a 503 `ApiError` when too much waits there."""
        self._admission.check_queue(num_prompt_tokens)
        self.num_prompt_tokens = num_prompt_tokens
        self._admission.move(self, _QUEUED)

    def start(self) -> None:
        """The engine has scheduled it."""
        self._admission.move(self, _RUNNING)

    def release(self) -> None:
        """Give the permit back. Idempotent."""
        if self.place is not None:
            self._admission.move(self, None)

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class _KeyUsage:
    """What one API key has under way, and when its requests of the last minute came."""

    __slots__ = ("arrivals", "open")

    def __init__(self) -> None:
        self.open = 0
        self.arrivals: deque[float] = deque()

    def seconds_until_allowed(self, per_minute: int) -> float:
        """0 when another request is within `per_minute`, else the seconds until it is."""
        now = time.monotonic()
        while self.arrivals and self.arrivals[0] <= now - 60:
            self.arrivals.popleft()
        return 0.0 if len(self.arrivals) < per_minute else self.arrivals[0] + 60 - now


class Admission:
    """Hands out permits and counts them. Belongs to the event loop."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self.counts = [0] * len(Place)
        self.queued_tokens = 0
        self.rejections: Counter[str] = Counter()
        self._rates = [ServiceRate() for _ in Place]
        self._keys: dict[str, _KeyUsage] = {}
        self._is_closed = False

    @property
    def num_open(self) -> int:
        """Permits that are held."""
        return sum(self.counts)

    @property
    def is_closed(self) -> bool:
        """Whether everything is refused, as the server shuts down."""
        return self._is_closed

    def close(self) -> None:
        """Refuse everything from now on; what was admitted goes on."""
        self._is_closed = True

    def admit(self, key: ApiKey | None) -> Permit:
        """A permit for a request that has just come, or a 429 or 503 `ApiError` at once."""
        if self._is_closed:
            raise self._refusal("closing", 503, "the server is shutting down", MIN_RETRY_S)
        usage = self._check_key(key) if key is not None else None
        limits, (preparing, queued, running) = self.limits, self.counts
        if 0 < limits.max_requests <= preparing + queued + running:
            raise self._full("requests", limits.max_requests, _RUNNING)
        if 0 < limits.max_preparing <= preparing:
            raise self._full("requests preparing", limits.max_preparing, _PREPARING)
        if 0 < limits.max_queued <= queued:
            raise self._full("requests queued", limits.max_queued, _QUEUED)
        self.counts[_PREPARING] += 1
        if usage is not None and key is not None:
            usage.open += 1
            if key.requests_per_minute:
                usage.arrivals.append(time.monotonic())
        return Permit(self, key)

    def check_queue(self, num_prompt_tokens: int) -> None:
        """Raise a 503 `ApiError` if a prompt of that length may not join the queue. An empty queue takes any."""
        if 0 < self.limits.max_queued <= self.counts[_QUEUED]:
            raise self._full("requests queued", self.limits.max_queued, _QUEUED)
        limit = self.limits.max_queued_tokens
        if limit and self.queued_tokens and self.queued_tokens + num_prompt_tokens > limit:
            retry_s = self._rates[Place.QUEUED].seconds_for(self.counts[Place.QUEUED])
            text = f"{self.queued_tokens} prompt tokens wait already; the limit is {limit}"
            raise self._refusal("queued_tokens", 503, text, retry_s)

    def move(self, permit: Permit, place: Place | None) -> None:
        """Count `permit` in another place, or in none any more."""
        left = permit.place
        if left is place or left is None:
            return
        self.counts[left] -= 1
        self._rates[left].times.append(time.monotonic())
        if left is _QUEUED:
            self.queued_tokens -= permit.num_prompt_tokens
        elif place is _QUEUED:
            self.queued_tokens += permit.num_prompt_tokens
        permit.place = place
        if place is not None:
            self.counts[place] += 1
        elif permit.key is not None:
            self._keys[permit.key.name].open -= 1

    def _full(self, what: str, limit: int, place: Place) -> ApiError:
        text = f"the server is at its limit of {limit} {what}"
        return self._refusal(what.split()[-1], 503, text, self._rates[place].seconds_for(max(1, self.counts[place])))

    def _check_key(self, key: ApiKey) -> _KeyUsage:
        usage = self._keys.setdefault(key.name, _KeyUsage())
        limit = key.max_requests or self.limits.max_requests_per_key
        if limit and usage.open >= limit:
            share = max(1, self.num_open // usage.open)
            text = f"this API key has {usage.open} requests under way; its limit is {limit}"
            raise self._refusal("key_requests", 429, text, self._rates[Place.RUNNING].seconds_for(share))
        if key.requests_per_minute and (wait_s := usage.seconds_until_allowed(key.requests_per_minute)):
            text = f"this API key is at its limit of {key.requests_per_minute} requests a minute"
            raise self._refusal("key_rate", 429, text, wait_s)
        return usage

    def _refusal(self, cause: str, status: int, text: str, retry_after_s: float) -> ApiError:
        self.rejections[cause] += 1
        code = "rate_limit_exceeded" if status == 429 else "shutting_down" if cause == "closing" else "overloaded"
        return ApiError(status, f"{text}; retry later", code=code, retry_after_s=retry_after_s)
