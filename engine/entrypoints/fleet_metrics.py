"""What /metrics shows of each engine, where there is a fleet of them behind the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.backend import Backend
from engine.backends.endpoint_stats import CIRCUIT_STATES, FAULTS, EndpointStats


@runtime_checkable
class FleetBackend(Protocol):
    """A backend that has several engines."""

    def endpoint_stats(self) -> Sequence[EndpointStats]: ...


_GAUGES: dict[str, tuple[str, Callable[[EndpointStats], int]]] = {
    "fleet_up": ("Whether the engine gets new requests", lambda stats: stats.is_usable),
    "fleet_draining": ("Whether the engine is being drained", lambda stats: stats.is_draining),
    "fleet_requests": ("Requests of this server in flight at the engine", lambda stats: stats.requests),
    "fleet_kv_tokens": ("KV tokens of this server's requests at the engine", lambda stats: stats.kv_tokens),
    "fleet_other_requests": ("Requests of others in flight at the engine", lambda stats: stats.other_requests),
    "fleet_other_kv_tokens": ("KV tokens of others at the engine", lambda stats: stats.other_kv_tokens),
}
_COUNTERS: dict[str, tuple[str, Callable[[EndpointStats], int]]] = {
    "fleet_attempts": ("Requests sent to the engine", lambda stats: stats.attempts),
    "fleet_retries": ("Of these, requests that another engine had failed", lambda stats: stats.retries),
}


def fleet_families(backend: Backend) -> Iterator[Metric]:
    """Families with one series an engine, by its address; none for a backend that has no fleet."""
    if not isinstance(backend, FleetBackend):
        return
    engines = backend.endpoint_stats()
    for name, (text, value) in _GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["endpoint"])
        for stats in engines:
            gauge.add_metric([stats.endpoint], value(stats))
        yield gauge
    for name, (text, value) in _COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=["endpoint"])
        for stats in engines:
            counter.add_metric([stats.endpoint], value(stats))
        yield counter
    yield _faults(engines)
    yield _circuits(engines)


def _faults(engines: Sequence[EndpointStats]) -> Metric:
    family = CounterMetricFamily("fleet_faults", "Requests that the engine failed", labels=["endpoint", "kind"])
    for stats in engines:
        for kind in FAULTS:
            family.add_metric([stats.endpoint, kind], stats.faults.get(kind, 0))
    return family


def _circuits(engines: Sequence[EndpointStats]) -> Metric:
    text = "1 for the state that the engine's circuit breaker is in"
    family = GaugeMetricFamily("fleet_circuit", text, labels=["endpoint", "state"])
    for stats in engines:
        for state in CIRCUIT_STATES:
            family.add_metric([stats.endpoint, state], stats.circuit == state)
    return family
