"""What is kept of a request when it has ended: one structured log line, and its share of the metrics.

The line is JSON with the request's ID, protocol, key, tokens, times by phase and outcome; no text of a prompt or an
answer, unless the server was asked to log bodies.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec

from engine.backends.request_record import RequestRecord
from engine.entrypoints.lifeline import Lifeline, Phase
from engine.entrypoints.metrics import Metrics

access_log = logging.getLogger("access")

MAX_LOGGED_BODY_CHARS = 20_000


@runtime_checkable
class ObservableBackend(Protocol):
    """A backend that tells what it knows of each request when it has ended."""

    observer: Callable[[RequestRecord], None] | None


@dataclass(slots=True)
class RequestTrace:
    """One generating request, from its headers to its end. `outcome` is a word for logs and metrics."""

    request_id: str
    protocol: str
    key: str | None
    lifeline: Lifeline
    body: bytes | None = None
    stream: bool = False
    shows_timings: bool = False
    status: int = 200
    outcome: str = "error"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def server_timing(self) -> str:
        """The same as `timings`, in the syntax of the Server-Timing header."""
        durations = {name.removesuffix("_ms"): value for name, value in self.timings().items() if name.endswith("_ms")}
        return ", ".join(f"{name};dur={value}" for name, value in durations.items() if value is not None)

    def timings(self) -> dict[str, Any]:
        """What a client that asks for timings is told, in milliseconds and tokens a second."""
        seconds = self.lifeline.seconds
        first_at = self.lifeline.first_token_at
        decode_s = seconds[Phase.DECODE] + seconds[Phase.GENERATE] + seconds[Phase.SEND]
        rate = (self.completion_tokens - 1) / decode_s if decode_s > 0 and self.completion_tokens > 1 else None
        return {
            **{f"{phase.name.lower()}_ms": round(seconds[phase] * 1000, 3) for phase in Phase if seconds[phase]},
            "first_token_ms": None if first_at is None else round((first_at - self.lifeline.opened_at) * 1000, 3),
            "tokens_per_second": None if rate is None else round(rate, 2),
        }


def set_up_logging(level: str) -> None:
    """Log to standard error: the access log as bare JSON lines, everything else with time, level and name."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    access_log.handlers = [handler]
    access_log.propagate = False


class Telemetry:
    """Takes finished requests into the metrics and the log."""

    def __init__(self, metrics: Metrics, *, log_bodies: bool = False) -> None:
        self.metrics = metrics
        self.log_bodies = log_bodies
        self._open: dict[str, RequestTrace] = {}

    def begin(self, trace: RequestTrace) -> None:
        """Account for a request until `finish`."""
        self._open[trace.request_id] = trace

    def on_record(self, record: RequestRecord) -> None:
        """Take over when the engine scheduled a request, which it tells only with the outputs of the step."""
        trace = self._open.get(record.request_id)
        if trace is None or record.queue_s is None:
            return
        seconds = trace.lifeline.seconds
        waited_s = seconds[Phase.QUEUE] + seconds[Phase.PREFILL]
        seconds[Phase.QUEUE] = min(record.queue_s, waited_s)
        seconds[Phase.PREFILL] = waited_s - seconds[Phase.QUEUE]

    def finish(self, trace: RequestTrace) -> None:
        """Count and log a request that has ended."""
        self._open.pop(trace.request_id, None)
        metrics, seconds = self.metrics, trace.lifeline.seconds
        metrics.requests[trace.protocol, trace.outcome] += 1
        metrics.request.observe(trace.lifeline.elapsed_s)
        for phase, histogram in metrics.by_phase:
            if seconds[phase]:
                histogram.observe(seconds[phase])
        metrics.tokens_in += trace.prompt_tokens
        metrics.tokens_cached += trace.cached_tokens
        metrics.tokens_out += trace.completion_tokens
        if access_log.isEnabledFor(logging.INFO):
            access_log.info("%s", msgspec.json.encode(self._line(trace)).decode())

    def _line(self, trace: RequestTrace) -> dict[str, Any]:
        line = {
            "time": round(time.time(), 3),
            "request_id": trace.request_id,
            "protocol": trace.protocol,
            "key": trace.key,
            "stream": trace.stream,
            "status": trace.status,
            "outcome": trace.outcome,
            "prompt_tokens": trace.prompt_tokens,
            "cached_tokens": trace.cached_tokens,
            "completion_tokens": trace.completion_tokens,
            "total_ms": round(trace.lifeline.elapsed_s * 1000, 3),
            **trace.timings(),
        }
        if self.log_bodies and trace.body is not None:
            line["body"] = trace.body.decode("utf-8", "replace")[:MAX_LOGGED_BODY_CHARS]
        return line
