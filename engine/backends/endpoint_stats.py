"""What one engine of a fleet does and has done, as /metrics shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """A snapshot. `attempts`, `retries` and `faults` only grow; all else describes this moment.

    `requests` and `kv_tokens` are those of this front, `other_requests` and `other_kv_tokens` of everybody else there.
    A retry is an attempt at this engine after another one had failed the request; `faults` are by kind.
    """

    endpoint: str
    is_usable: bool
    is_draining: bool
    circuit: str
    requests: int
    kv_tokens: int
    other_requests: int
    other_kv_tokens: int
    attempts: int
    retries: int
    faults: Mapping[str, int]


CIRCUIT_STATES = ("closed", "half-open", "open")
"""Requests go through, one is tried, none is."""

FAULTS = ("busy", "failed", "unreachable")
"""It had too much to do, it failed a request, it could not be connected to."""
