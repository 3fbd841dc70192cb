"""What /metrics shows. Observations are plain additions on the event loop; prometheus_client only writes them out.

Everything is recorded by the event loop, so there is nothing to lock: a histogram is a list of counts, found by
bisection. The gauges are read when somebody asks.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.backend import Backend
from engine.entrypoints.admission import Admission, Place
from engine.entrypoints.fleet_metrics import fleet_families
from engine.entrypoints.lifeline import Phase

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAST_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SLOW_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """Counts of observed seconds by upper bound, and their sum."""

    __slots__ = ("bounds", "counts", "name", "text", "total")

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.text = text
        self.bounds = list(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def family(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.text)
        running, buckets = 0, []
        for bound, number in zip([*self.bounds, float("inf")], self.counts, strict=True):
            running += number
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), running))
        family.add_metric([], buckets, self.total)
        return family


def _num_tasks() -> int:
    """Tasks that are not done; 0 when nobody runs a loop, as at registration."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


class Metrics(Collector):
    """The server's counters and histograms, and the way to write them out."""

    def __init__(self, backend: Backend, admission: Admission) -> None:
        self._backend = backend
        self._admission = admission
        self.first_token = Histogram("server_time_to_first_token_seconds", "From headers to first token", _SLOW_S)
        self.inter_token = Histogram("server_inter_token_seconds", "Between two deliveries of tokens", _FAST_S)
        self.request = Histogram("server_request_seconds", "From the headers to the end of the response", _SLOW_S)
        self.prepare = Histogram("server_prepare_seconds", "Conversion and tokenising, waits included", _FAST_S)
        self.images = Histogram("server_images_seconds", "Fetching and decoding the images of a request", _SLOW_S)
        self.compile = Histogram("server_compile_seconds", "Making a grammar of an output constraint", _FAST_S)
        self.queue = Histogram("server_queue_seconds", "From submission to the first step", _SLOW_S)
        self.by_phase = (
            (Phase.PREPARE, self.prepare),
            (Phase.IMAGES, self.images),
            (Phase.COMPILE, self.compile),
            (Phase.QUEUE, self.queue),
        )
        self.requests: Counter[tuple[str, str]] = Counter()  # by protocol and outcome
        self.prompt_texts: Counter[str] = Counter()  # by whether a token cache had them
        self.tokens_in = self.tokens_cached = self.tokens_out = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        for histogram in (self.first_token, self.inter_token, self.request, *(item for _, item in self.by_phase)):
            yield histogram.family()
        yield from self._counters()
        yield from self._gauges()
        yield from fleet_families(self._backend)

    def _counters(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("server_requests", "Requests that have ended", labels=["protocol", "outcome"])
        for labels, number in sorted(self.requests.items()):
            requests.add_metric(labels, number)
        yield requests
        rejections = CounterMetricFamily("server_rejections", "Requests that were not admitted", labels=["cause"])
        for cause, number in sorted(self._admission.rejections.items()):
            rejections.add_metric([cause], number)
        yield rejections
        disconnects = sum(number for (_, outcome), number in self.requests.items() if outcome == "disconnected")
        stats = self._backend.stats()
        yield CounterMetricFamily("server_disconnects", "Clients that left before the end", value=disconnects)
        yield CounterMetricFamily("server_prompt_tokens", "Prompt tokens of admitted requests", value=self.tokens_in)
        yield CounterMetricFamily("server_cached_prompt_tokens", "Of these, from the cache", value=self.tokens_cached)
        texts = CounterMetricFamily("server_prompt_texts", "Texts looked up in token caches", labels=["cache"])
        for outcome, number in sorted(self.prompt_texts.items()):
            texts.add_metric([outcome], number)
        yield texts
        yield CounterMetricFamily("server_completion_tokens", "Tokens generated", value=self.tokens_out)
        yield CounterMetricFamily("engine_prompt_tokens", "Prompt tokens so far", value=stats.prompt_tokens)
        yield CounterMetricFamily("engine_completion_tokens", "Tokens so far", value=stats.completion_tokens)
        yield CounterMetricFamily("engine_preemptions", "Sequences that gave up their blocks", value=stats.preemptions)

    def _gauges(self) -> Iterator[Metric]:
        places = GaugeMetricFamily("server_admitted_requests", "Requests under way, by place", labels=["place"])
        for place in Place:
            places.add_metric([place.name.lower()], self._admission.counts[place])
        yield places
        stats = self._backend.stats()
        yield GaugeMetricFamily("server_tasks", "Tasks of the event loop", value=_num_tasks())
        yield GaugeMetricFamily("server_queued_tokens", "Prompt tokens that wait", value=self._admission.queued_tokens)
        yield GaugeMetricFamily("engine_running_sequences", "Sequences in the batch", value=stats.running)
        yield GaugeMetricFamily("engine_waiting_sequences", "Sequences in the queue", value=stats.waiting)
        yield GaugeMetricFamily("engine_kv_blocks_used", "KV blocks in use", value=stats.kv_blocks_used)
        yield GaugeMetricFamily("engine_kv_blocks", "KV blocks there are", value=stats.kv_blocks_total)
        yield GaugeMetricFamily("engine_up", "Whether the engine serves", value=int(self._backend.health().ok))
