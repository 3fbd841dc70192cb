from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from engine.backend import DeadlineExceededError, EngineDeadError, EngineRequest
from engine.backends.mock import MockBackend
from engine.config import ConfigError
from recipe.stream.inference import InferenceChunk, InferenceFinishReason
from tests.engine.fake_runner import make_request
from tests.lived_time import clock, until


async def play(backend: MockBackend, **settings: Any) -> list[InferenceChunk]:
    return [chunk async for chunk in backend.infer(make_request("a", [1, 2, 3], **({"max_tokens": 100} | settings)))]


async def test_it_yields_ready_then_a_token_a_chunk_then_finish() -> None:
    backend = MockBackend(tokens=3, system_fingerprint="fp")
    chunks = await play(backend)
    assert [chunk.kind for chunk in chunks] == ["ready", "text", "text", "text", "finish"]
    assert chunks[0].prompt_usage is not None and chunks[0].prompt_usage.prompt_tokens == 3
    assert chunks[0].system_fingerprint == "fp"
    assert sum(chunk.token_count or 0 for chunk in chunks) == 3
    assert chunks[-1].finish_reason is InferenceFinishReason.Stop
    assert (backend.stats().prompt_tokens, backend.stats().completion_tokens, backend.stats().running) == (3, 3, 0)


async def test_max_tokens_cuts_the_output_with_a_length_finish() -> None:
    chunks = await play(MockBackend(tokens=5), max_tokens=2)
    assert len(chunks) == 4
    assert chunks[-1].finish_reason is InferenceFinishReason.Length


async def test_the_rate_is_kept_and_does_not_drift(leaping_time: None, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr("engine.backends.mock.time", clock())
    started_at = loop.time()
    async for _ in MockBackend(tokens=20, rate=100).infer(make_request("a", [1], max_tokens=20)):
        await asyncio.sleep(0.004)  # what a reader does with a token
    assert loop.time() - started_at == pytest.approx(0.2, abs=0.02)


async def test_streams_take_turns_when_there_is_no_rate() -> None:
    backend = MockBackend(tokens=4)
    order: list[str] = []

    async def read(name: str) -> None:
        async for _ in backend.infer(make_request(name, [1])):
            order.append(name)  # noqa: PERF401 - the order in time is what matters

    await asyncio.gather(read("a"), read("b"))
    assert order != sorted(order)


async def test_a_script_is_played_in_turn_over_and_over(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"text": "  Hello big\\nworld "}\n\n{"token_ids": [5, 6], "finish_reason": "length"}\n')
    backend = MockBackend(script=script)
    first, second, third = [await play(backend) for _ in range(3)]
    assert "".join(chunk.content or "" for chunk in first) == "  Hello big\nworld "
    assert len(first) == 5
    assert [chunk.token_ids for chunk in second[1:-1]] == [[5], [6]]
    assert second[-1].finish_reason is InferenceFinishReason.Length
    assert [chunk.content for chunk in third] == [chunk.content for chunk in first]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense", "[]", "{}", '{"text": "a", "token_ids": [1]}', '{"text": 1}', '{"token_ids": [-1]}',
        '{"token_ids": 1}',
        '{"token_ids": [true]}', '{"text": "a", "finish_reason": "tool_calls"}', '{"text": "a", "match": "b"}',
        '{"text": "\\ud800"}', '{"text": "a", "finish_reason": []}',
    ],
)  # fmt: skip
def test_a_script_that_cannot_be_played_is_refused_by_line(tmp_path: Path, line: str) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(ConfigError, match="line 2"):
        MockBackend(script=script)


def test_a_script_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mock_script"):
        MockBackend(script=tmp_path / "missing")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="mock_script"):
        MockBackend(script=tmp_path / "empty")


@pytest.mark.parametrize("settings", [{"tokens": 0}, {"rate": -1.0}, {"rate": float("inf")}, {"rate": float("nan")}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="mock_"):
        MockBackend(**settings)


async def test_a_passed_deadline_and_a_closed_backend_end_the_stream() -> None:
    backend = MockBackend(tokens=1000, rate=1000)
    with pytest.raises(DeadlineExceededError):
        await play(backend, deadline=time.monotonic() + 0.02, max_tokens=1000)
    assert backend.stats().running == 0
    reader = asyncio.create_task(play(backend, max_tokens=1000))
    await until(lambda: backend.stats().running)
    await backend.aclose()
    with pytest.raises(EngineDeadError):
        await reader
    with pytest.raises(EngineDeadError):
        await play(backend)
    assert not backend.health().ok


async def test_closing_a_stream_early_leaves_nothing_running() -> None:
    backend = MockBackend(tokens=1000)
    stream = backend.infer(EngineRequest("a", [1], make_request("a", [1]).sampling_params))
    await anext(stream)
    assert backend.stats().running == 1
    await stream.aclose()
    assert backend.stats().running == 0
