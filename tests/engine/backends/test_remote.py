"""A fleet of fake engines behind the seam: what goes out, what comes back, and every way in which it can go wrong."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from engine.backend import ConstraintRefusedError, DeadlineExceededError, EngineDeadError, RequestRefusedError
from engine.backends.remote import RemoteBackend
from engine.backends.remote_endpoint import RemoteLimits
from engine.config import ConfigError
from recipe.request import OutputConstraint
from recipe.stream.inference import InferenceFinishReason
from tests.engine.backends.fake_engine import EOS, FakeEngine, FakeSglang, serving
from tests.engine.backends.fake_fleet import KINDS, PROMPT, fleet, play, tokens_of
from tests.engine.fake_runner import make_request
from tests.lived_time import until


@KINDS
async def test_tokens_come_without_the_stop_token_which_is_counted(kind: str, make: type[FakeEngine]) -> None:
    async with fleet(make(), kind=kind) as backend:
        chunks = await play(backend)
    assert [chunk.kind for chunk in chunks] == ["ready", "tokens", "tokens", "tokens", "finish"]
    assert tokens_of(chunks) == [11, 12, 13]
    assert (chunks[-1].finish_reason, chunks[-1].token_count) == (InferenceFinishReason.Stop, 1)
    assert (backend.stats().prompt_tokens, backend.stats().completion_tokens) == (4, 4)


@KINDS
async def test_a_length_finish_hides_no_token(kind: str, make: type[FakeEngine]) -> None:
    async with fleet(make(), kind=kind) as backend:
        chunks = await play(backend, max_tokens=2)
    assert tokens_of(chunks) == [11, 12]
    assert (chunks[-1].finish_reason, chunks[-1].token_count) == (InferenceFinishReason.Length, None)


async def test_vllm_tells_cache_hits_at_the_end_and_the_finish_corrects_the_usage() -> None:
    engine = FakeEngine()
    engine.cached_tokens = 3
    async with fleet(engine) as backend:
        chunks = await play(backend)
    first, last = chunks[0].prompt_usage, chunks[-1].prompt_usage
    assert first is not None and (first.prompt_tokens, first.prompt_cache_hit_tokens) == (4, 0)
    assert last is not None and (last.prompt_tokens, last.prompt_cache_hit_tokens) == (4, 3)


async def test_sglang_tells_cache_hits_with_the_first_token() -> None:
    engine = FakeSglang()
    engine.cached_tokens = 3
    async with fleet(engine, kind="sglang") as backend:
        chunks = await play(backend)
    usage = chunks[0].prompt_usage
    assert usage is not None and usage.prompt_cache_hit_tokens == 3


async def test_every_sampling_parameter_reaches_vllm_in_its_own_field() -> None:
    engine = FakeEngine()
    async with fleet(engine) as backend:
        await play(
            backend, max_tokens=9, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=7, repetition_penalty=1.1,
            presence_penalty=0.2, frequency_penalty=0.3, min_tokens=2, stop_token_ids=[99], logit_bias={3: -1.0},
            logprobs=2, priority=4, cache_salt=b"mine",
        )  # fmt: skip
        await play(backend, ignore_eos=True)
    body, second = engine.bodies
    assert body["token_ids"] == PROMPT and body["stream"] is True and body["stream_options"] == {"include_usage": True}
    assert (body["priority"], body["cache_salt"]) == (4, "mine")
    assert body["sampling_params"] == {
        "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7, "logprobs": 2,
        "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3, "min_tokens": 2,
        "ignore_eos": False, "stop_token_ids": [EOS, 99], "logit_bias": {"3": -1.0},
    }  # fmt: skip
    assert second["sampling_params"]["stop_token_ids"] == [] and second["sampling_params"]["ignore_eos"] is True
    assert "priority" not in second and "cache_salt" not in second


async def test_every_sampling_parameter_reaches_sglang_in_its_own_field() -> None:
    engine = FakeSglang()
    async with fleet(engine, kind="sglang") as backend:
        await play(
            backend, max_tokens=9, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=7, repetition_penalty=1.1,
            presence_penalty=0.2, frequency_penalty=0.3, min_tokens=2, stop_token_ids=[99], logit_bias={3: -1.0},
            logprobs=1, priority=4, cache_salt=b"mine",
        )  # fmt: skip
        with pytest.raises(RequestRefusedError, match="repetition_penalty"):
            await play(backend, repetition_penalty=3.0)
    body = engine.bodies[0]
    assert body["input_ids"] == PROMPT and body["return_logprob"] is True and body["top_logprobs_num"] == 1
    assert (body["priority"], body["extra_key"]) == (4, "mine")
    assert body["sampling_params"] == {
        "max_new_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "sampling_seed": 7,
        "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3, "min_new_tokens": 2,
        "ignore_eos": False, "stop_token_ids": [EOS, 99], "logit_bias": {"3": -1.0},
    }  # fmt: skip


async def test_vllm_log_probabilities_have_the_asked_number_of_alternatives_the_likeliest_first() -> None:
    async with fleet(FakeEngine()) as backend:
        chunks = await play(backend, logprobs=2)
        alone = await play(backend, logprobs=0)
    assert chunks[1].logprobs == [(-0.5, [(11, -0.5), (12, -1.5)])]
    assert alone[1].logprobs == [(-0.5, [])]


@pytest.mark.parametrize("is_incremental", [False, True])
async def test_sglang_events_may_hold_all_tokens_or_the_new_ones(is_incremental: bool) -> None:
    engine = FakeSglang()
    engine.is_incremental = is_incremental
    async with fleet(engine, kind="sglang") as backend:
        chunks = await play(backend, logprobs=2)
    assert tokens_of(chunks) == [11, 12, 13]
    assert chunks[2].logprobs == [(-0.5, [(12, -0.5), (13, -1.5)])]


@KINDS
async def test_bad_words_and_images_are_refused_by_name(kind: str, make: type[FakeEngine]) -> None:
    async with fleet(make(), kind=kind) as backend:
        with pytest.raises(RequestRefusedError, match="bad_words"):
            await play(backend, bad_words_token_ids=[[4]])
        with pytest.raises(RequestRefusedError, match="images"):
            await play(backend, images=["picture"])
        assert backend.stats().running == 0


async def test_constraints_become_the_engines_own_fields() -> None:
    engine, other = FakeEngine(), FakeSglang()
    schema = OutputConstraint("json", '{"type":"integer"}')
    async with fleet(engine) as vllm, fleet(other, kind="sglang") as sglang:
        await play(vllm, constraint=await vllm.compile(schema))
        await play(sglang, constraint=await sglang.compile(schema))
        choice = await sglang.compile(OutputConstraint("choice", '["a.b", "c"]'))
        with pytest.raises(ConstraintRefusedError, match="EBNF"):
            await sglang.compile(OutputConstraint("grammar", 'start: "a"'))
        with pytest.raises(ConstraintRefusedError, match="llama3"):
            await vllm.compile(OutputConstraint("tool_call", "[]", tool_markup="llama3"))
    assert engine.bodies[0]["sampling_params"]["structured_outputs"] == {"json": {"type": "integer"}}
    assert other.bodies[0]["sampling_params"]["json_schema"] == '{"type":"integer"}'
    assert choice.payload == {"regex": r"(a\.b|c)"}


@KINDS
async def test_a_client_that_leaves_frees_its_request_at_the_engine_within_100_ms(
    kind: str, make: type[FakeEngine]
) -> None:
    engine = make()
    engine.tokens, engine.gap_s = [11] * 1000, 0.01
    async with fleet(engine, kind=kind) as backend:
        chunks = backend.infer(make_request("a", PROMPT, max_tokens=1001))
        await anext(chunks)
        await anext(chunks)
        assert len(engine.running) == 1 and backend.stats().running == 1
        left_at = asyncio.get_running_loop().time()
        await chunks.aclose()
        await until(lambda: not engine.running)
        assert asyncio.get_running_loop().time() - left_at < 0.1
        assert backend.stats().running == 0
        if engine.abort_path is None:
            return
        name = engine.bodies[0].get("request_id") or engine.bodies[0]["rid"]
        assert engine.aborted == [f"generate-tokens-{name}" if kind == "vllm" else name]


async def test_cleanup_runs_to_its_end_when_cancelled_twice() -> None:
    engine = FakeEngine()
    engine.tokens, engine.gap_s = [11] * 1000, 0.01
    async with fleet(engine) as backend:
        task = asyncio.create_task(play(backend, max_tokens=1001))
        await until(lambda: engine.running)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.aborted and not engine.running and backend.stats().running == 0


async def test_a_request_that_waits_for_its_first_token_is_aborted_too() -> None:
    engine = FakeEngine()
    engine.faults = ["stall"]
    limits = RemoteLimits(first_token_s=30)
    async with fleet(engine, limits=limits) as backend:
        task = asyncio.create_task(play(backend))
        await until(lambda: engine.running)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.aborted and not engine.running


async def test_a_deadline_ends_a_request_before_and_after_its_first_token() -> None:
    engine = FakeEngine()
    engine.faults = ["stall"]
    async with fleet(engine, limits=RemoteLimits()) as backend:
        with pytest.raises(DeadlineExceededError):
            await play(backend, deadline=time.monotonic() + 0.05)
        engine.gap_s = 600.0
        with pytest.raises(DeadlineExceededError):
            await play(backend, deadline=time.monotonic() + 0.1)
        await until(lambda: not engine.running)


async def test_connections_are_kept_for_the_next_request() -> None:
    engine = FakeEngine()
    async with fleet(engine) as backend:
        for _ in range(5):
            await play(backend)
        assert len(engine.connections) == 1


async def test_a_closed_backend_ends_what_is_open_and_refuses_what_comes() -> None:
    engine = FakeEngine()
    engine.tokens, engine.gap_s = [11] * 1000, 0.01
    async with fleet(engine, limits=RemoteLimits()) as backend:
        reader = asyncio.create_task(play(backend, max_tokens=1001))
        await until(lambda: engine.running)
        await backend.aclose()
        with pytest.raises(EngineDeadError):
            await reader
        with pytest.raises(EngineDeadError):
            await play(backend)
        assert not backend.health().ok


async def test_requests_follow_their_prefix_and_spread_without_one() -> None:
    engines = [FakeEngine() for _ in range(4)]
    prompt = list(range(1000, 1256))
    async with fleet(*engines) as backend:
        for _ in range(6):
            await play(backend, prompt=prompt)
        assert sorted(engine.num_served for engine in engines) == [0, 0, 0, 6]
        for number in range(8):
            await play(backend, prompt=[number] * 256)
        assert min(engine.num_served for engine in engines) >= 1
        before = [engine.num_served for engine in engines]
        await play(backend, prompt=prompt, cache_salt=b"other")
        assert sum(engine.num_served for engine in engines) == sum(before) + 1


async def test_what_others_have_under_way_at_an_engine_counts() -> None:
    busy, idle = FakeEngine(), FakeEngine()
    busy.other_requests, busy.other_kv = 20, 0.5
    async with fleet(busy, idle) as backend:
        await backend.started()
        assert backend.health().details[busy.url] == {
            "problem": "", "draining": False, "requests": 20, "kv_tokens": 23296,
        }  # fmt: skip
        for number in range(6):
            await play(backend, prompt=[number] * 8)
        assert (busy.num_served, idle.num_served) == (0, 6)


async def test_a_file_of_endpoints_is_followed_and_what_leaves_it_is_drained(tmp_path: Path) -> None:
    first, second = FakeEngine(), FakeEngine()
    first.tokens = [11] * 30
    first.gate.clear()
    path = tmp_path / "endpoints"
    async with serving(first, second):
        path.write_text(f"# the fleet\n{first.url}/\n")
        backend = RemoteBackend(f"@{path}", "vllm", {EOS}, limits=RemoteLimits(health_interval_s=0.05))
        await backend.started()
        running = asyncio.create_task(play(backend))
        await until(lambda: first.running)
        path.write_text(second.url)
        await until(lambda: second.url in backend.health().details)
        assert backend.health().details[first.url]["draining"]
        await play(backend)
        assert second.num_served == 1
        first.gate.set()
        assert tokens_of(await running) == [11] * 30, "what was under way is not cut off"
        await until(lambda: first.url not in backend.health().details)
        path.write_text("nonsense")
        await asyncio.sleep(0.12)
        assert backend.health().ok, "a file that cannot be used changes nothing"
        await backend.aclose()


@pytest.mark.parametrize("endpoints", ["", "ftp://a", "a:8000", "http://", "http://a?b=c", "@/nowhere", "unix:"])
def test_endpoints_that_cannot_be_meant_are_refused(endpoints: str) -> None:
    with pytest.raises(ConfigError, match="endpoints"):
        RemoteBackend(endpoints, "vllm")
