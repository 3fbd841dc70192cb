"""Engines of a fleet that fail, in every way: another one takes over, or the request fails and says so."""

from __future__ import annotations

import asyncio
import socket

import pytest

from engine.backend import EngineDeadError, EngineError, EnginesUnavailableError, RequestRefusedError
from engine.backends.remote import RemoteBackend
from engine.backends.request_record import RequestRecord
from tests.engine.backends.fake_engine import FakeEngine
from tests.engine.backends.fake_fleet import KINDS, PROMPT, QUICK, fleet, play, tokens_of
from tests.engine.fake_runner import make_request
from tests.lived_time import HANG_S, until


@KINDS
@pytest.mark.parametrize("fault", ["stall", "headers", "reset", "half", "garbage", 500, 503, 429, 404])
async def test_before_the_first_token_another_engine_takes_over(
    kind: str, make: type[FakeEngine], fault: str | int
) -> None:
    engines = [make(), make()]
    for engine in engines:
        engine.faults = [fault]
    async with fleet(*engines, kind=kind) as backend:
        engines[1].faults = []
        engines[1].gap_s = 0.001
        outcomes = [tokens_of(await play(backend)) for _ in range(2)]
        assert outcomes == [[11, 12, 13]] * 2
        assert engines[0].num_served >= 1 and engines[0].faults == []
        await until(lambda: not engines[0].running)
        assert backend.stats().running == 0


@KINDS
@pytest.mark.parametrize("fault", ["late", "late_error", "short"])
async def test_after_the_first_token_a_fault_fails_the_request(kind: str, make: type[FakeEngine], fault: str) -> None:
    engines = [make(), make()]
    records: list[RequestRecord] = []
    async with fleet(*engines, kind=kind, observer=records.append) as backend:
        for engine in engines:
            engine.faults = [fault]
        got = []
        with pytest.raises(EngineError, match="in the middle of the answer") as caught:
            async for chunk in backend.infer(make_request("a", PROMPT)):
                got.append(chunk)  # noqa: PERF401 - what came before the failure matters
        assert not isinstance(caught.value, EngineDeadError | EnginesUnavailableError)
        assert tokens_of(got) == [11, 12]
        assert sum(engine.num_served for engine in engines) == 1
        assert records[0].outcome == "EngineError" and records[0].completion_tokens == 2


async def test_a_stream_that_stops_coming_fails_after_the_gap_limit() -> None:
    engine = FakeEngine()
    engine.gap_s = 600.0
    async with fleet(engine) as backend:
        with pytest.raises(EngineError, match="in the middle"):
            await asyncio.wait_for(play(backend), HANG_S)
        await until(lambda: not engine.running)


@KINDS
@pytest.mark.parametrize("fault", [400, "refusal"])
async def test_what_the_engine_refuses_is_the_requests_fault_and_is_not_tried_elsewhere(
    kind: str, make: type[FakeEngine], fault: str | int
) -> None:
    engines = [make(), make()]
    async with fleet(*engines, kind=kind) as backend:
        for number in range(1, 9):
            for engine in engines:
                engine.faults = [fault]
            with pytest.raises(RequestRefusedError, match=f"fake {fault}"):
                await play(backend)
            assert sum(engine.num_served for engine in engines) == number
        assert not any(endpoint.circuit.is_open for endpoint in backend.fleet.endpoints)


async def test_without_any_engine_the_request_may_come_again_later() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        backend = RemoteBackend(f"http://127.0.0.1:{unused.getsockname()[1]}", "vllm", limits=QUICK)
        for _ in range(2):
            with pytest.raises(EnginesUnavailableError):
                await play(backend)
        assert not backend.health().ok and "cannot be" not in backend.health().reason
        await backend.aclose()


async def test_a_request_that_fails_everywhere_does_not_visit_the_whole_fleet() -> None:
    engines = [FakeEngine() for _ in range(5)]
    for engine in engines:
        engine.faults = [500]
    async with fleet(*engines) as backend:
        with pytest.raises(EngineError, match="3 engines failed the request"):
            await play(backend)
        assert sum(engine.num_served for engine in engines) == 3


async def test_failures_in_a_row_open_the_circuit_and_a_trial_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    engine.faults = [500, 500, 500]
    async with fleet(engine) as backend:
        circuit = backend.fleet.endpoints[0].circuit
        monkeypatch.setattr(circuit, "_cooldown_s", 1000.0)
        for _ in range(3):
            with pytest.raises(EnginesUnavailableError):
                await play(backend)
        with pytest.raises(EnginesUnavailableError):
            await play(backend)
        assert engine.num_served == 3, "an open circuit lets nothing through"
        monkeypatch.setattr(circuit, "_cooldown_s", 0.0)
        assert tokens_of(await play(backend)) == [11, 12, 13]
        assert tokens_of(await play(backend)) == [11, 12, 13]


async def test_an_engine_that_says_503_gets_nothing_until_it_is_well_again() -> None:
    ill, well = FakeEngine(), FakeEngine()
    ill.is_healthy = False
    async with fleet(ill, well) as backend:
        await backend.started()
        for _ in range(4):
            await play(backend)
        assert (ill.num_served, well.num_served) == (0, 4)
        details = backend.health().details
        assert "503" in details[ill.url]["problem"] and details[well.url]["problem"] == ""
        ill.is_healthy, well.is_healthy = True, False
        await until(lambda: not backend.health().details[ill.url]["problem"])
        await until(lambda: backend.health().details[well.url]["problem"])
        await play(backend)
        assert ill.num_served == 1
