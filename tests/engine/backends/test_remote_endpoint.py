"""One engine of a fleet as it tells of itself, and as it is counted."""

from __future__ import annotations

import pytest

from engine.backend import EngineError, EnginesUnavailableError
from engine.backends.metric_lines import MetricLines
from engine.backends.remote import RemoteBackend
from engine.backends.remote_endpoint import Endpoint, RemoteLimits
from engine.backends.remote_identity import fingerprint
from tests.engine.backends.fake_engine import FakeCompletions, FakeEngine, FakeSglang
from tests.engine.backends.fake_fleet import KINDS, PROMPT, fleet, play, tokens_of
from tests.engine.fake_runner import make_request
from tests.lived_time import until


async def fingerprint_of(backend: RemoteBackend) -> str | None:
    return (await play(backend))[0].system_fingerprint


@KINDS
async def test_the_system_fingerprint_follows_the_version_of_the_engine(kind: str, make: type[FakeEngine]) -> None:
    first, same, other = make(), make(), make()
    other.version = "0.33.0"
    prints = []
    for engine in (first, same, other):
        async with fleet(engine, kind=kind) as backend:
            await backend.started()
            prints.append(await fingerprint_of(backend))
    assert prints[0] is not None and prints[0].startswith("fp_") and len(prints[0]) == 13
    assert prints[0] == prints[1] != prints[2]


async def test_an_engine_that_comes_back_is_asked_again_what_it_is() -> None:
    engine = FakeEngine()
    async with fleet(engine) as backend:
        await backend.started()
        before = await fingerprint_of(backend)
        engine.version, engine.is_healthy = "0.33.0", False
        await until(lambda: not backend.health().ok)
        engine.is_healthy = True
        await until(lambda: backend.health().ok and backend.fleet.endpoints[0].system_fingerprint != before)
        assert await fingerprint_of(backend) != before


async def test_an_engine_that_tells_nothing_has_no_fingerprint() -> None:
    engine = FakeEngine()
    engine.version = ""
    async with fleet(engine) as backend:
        await backend.started()
        assert await fingerprint_of(backend) is None


@pytest.mark.parametrize("answers", [[], [b"{}"], [b"nonsense", b"\xff"], [b'{"version": 3}'], [b'{"data": []}']])
def test_answers_that_tell_nothing_make_no_fingerprint(answers: list[bytes]) -> None:
    assert fingerprint("vllm", answers) is None


def test_a_fingerprint_depends_on_kind_version_and_model_alone() -> None:
    version, models = b'{"version":"1"}', b'{"data":[{"id":"m","root":"/m","created":%d}]}'
    known = fingerprint("vllm", [version, models % 1])
    assert fingerprint("vllm", [version, models % 2]) == known
    others = [
        fingerprint("sglang", [version, models % 1]),
        fingerprint("vllm", [b'{"version":"2"}', models % 1]),
        fingerprint("vllm", [version, b'{"data":[{"id":"n","root":"/m"}]}']),
    ]
    assert len({known, *others}) == 4


async def test_attempts_retries_and_faults_are_counted_by_engine() -> None:
    engines = [FakeEngine(), FakeEngine()]
    async with fleet(*engines) as backend:
        engines[0].faults, engines[1].faults = [500], [500]
        with pytest.raises(EnginesUnavailableError):
            await play(backend)
        engines[0].faults, engines[1].faults = [429], [429]
        with pytest.raises(EnginesUnavailableError):
            await play(backend)
        await play(backend)
        told = backend.endpoint_stats()
    assert sorted(stats.endpoint for stats in told) == sorted(engine.url for engine in engines)
    assert sum(stats.attempts for stats in told) == 5 and sum(stats.retries for stats in told) == 2
    assert [dict(stats.faults) for stats in told] == [{"failed": 1, "busy": 1}] * 2
    assert [(stats.requests, stats.kv_tokens, stats.circuit) for stats in told] == [(0, 0, "closed")] * 2


async def test_what_is_in_flight_is_told_with_the_tokens_so_far() -> None:
    engine = FakeEngine()
    engine.tokens, engine.gap_s = [11] * 1000, 0.01
    async with fleet(engine) as backend:
        chunks = backend.infer(make_request("a", PROMPT, max_tokens=1001))
        for _ in range(4):
            await anext(chunks)
        (told,) = backend.endpoint_stats()
        assert (told.requests, told.kv_tokens, told.is_usable) == (1, 4 + 3, True)
        await chunks.aclose()
        (told,) = backend.endpoint_stats()
        assert (told.requests, told.kv_tokens) == (0, 0)


async def test_the_state_of_the_circuit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    engine.faults = [500] * 3
    async with fleet(engine) as backend:
        monkeypatch.setattr(backend.fleet.endpoints[0].circuit, "_cooldown_s", 1000.0)
        states = [backend.endpoint_stats()[0].circuit]
        for _ in range(3):
            with pytest.raises(EngineError):
                await play(backend)
        states.append(backend.endpoint_stats()[0].circuit)
        monkeypatch.setattr(backend.fleet.endpoints[0].circuit, "_cooldown_s", 0.0)
        states.append(backend.endpoint_stats()[0].circuit)
        await play(backend)
        states.append(backend.endpoint_stats()[0].circuit)
    assert states == ["closed", "open", "half-open", "closed"]


async def test_a_trial_that_cannot_connect_leaves_the_engine_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    engine.faults = [500] * 3
    async with fleet(engine, limits=RemoteLimits(connect_s=0.5)) as backend:
        for _ in range(3):
            with pytest.raises(EngineError):
                await play(backend)
        (endpoint,) = backend.fleet.endpoints
        monkeypatch.setattr(endpoint.circuit, "_cooldown_s", 0.0)
        base, endpoint._base = endpoint._base, endpoint._base.with_port(1)
        with pytest.raises(EnginesUnavailableError):
            await play(backend)
        assert backend.endpoint_stats()[0].faults["unreachable"] == 1
        endpoint._base = base
        await backend.fleet.look()
        await play(backend)
        assert backend.endpoint_stats()[0].circuit == "closed"


def test_a_password_in_an_address_is_shown_to_nobody() -> None:
    endpoint = Endpoint("http://user:secret@host:8000/base", RemoteLimits())
    assert endpoint.stats().endpoint == endpoint.name == "http://host:8000/base"


def test_metrics_are_summed_over_the_ranks_and_what_is_no_number_is_left_out() -> None:
    lines = MetricLines("a", "a:b")
    body = b'# HELP a text\na{rank="0"} 1.0\na{rank="1"} 2.5\na:b 3\na:bc{x="a"} 9\nxa 9\na:b NaN\na nonsense\n'
    assert lines.sums(body) == {"a": 3.5, "a:b": 3.0}


async def test_a_vllm_without_its_token_route_is_told_with_what_to_change() -> None:
    plain, fit = FakeCompletions(), FakeEngine()
    async with fleet(plain, kind="vllm") as backend:
        for _ in range(5):  # until the circuit is open, and then
            with pytest.raises(EnginesUnavailableError, match=r"generate answers 404.*--enable-scale-out") as caught:
                await play(backend)
        assert "127.0.0.1" not in str(caught.value)
        health = backend.health()
        assert not health.ok and "--enable-scale-out" in health.reason
        assert "404" in health.details[plain.url]["problem"]
    async with fleet(plain, fit, kind="vllm") as backend:
        assert [tokens_of(await play(backend)) for _ in range(3)] == [[11, 12, 13]] * 3
        assert backend.health().ok


@pytest.mark.parametrize(("status", "told"), [(401, "endpoint-api-key"), (403, "endpoint-api-key"), (405, "SGLang")])
async def test_what_an_engine_lacks_is_told_until_it_serves_again(status: int, told: str) -> None:
    engine = FakeSglang()
    engine.faults = [status]
    async with fleet(engine, kind="sglang") as backend:
        with pytest.raises(EnginesUnavailableError, match=told):
            await play(backend)
        assert tokens_of(await play(backend)) == [11, 12, 13]
        assert backend.fleet.misfits() == ""


async def test_what_three_engines_lack_is_told_when_there_are_more() -> None:
    async with fleet(*(FakeCompletions() for _ in range(4)), kind="vllm") as backend:
        with pytest.raises(EngineError, match=r"3 engines failed the request: POST .*--enable-scale-out"):
            await play(backend)
