"""The whole front over a fleet of fake engines: what clients see of usage, faults and full engines."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.backends.remote import RemoteBackend
from engine.backends.remote_endpoint import RemoteLimits
from engine.entrypoints.assembly import open_files
from engine.entrypoints.lifecycle import create_server
from engine.entrypoints.options import OptionError, ServerOptions
from tests.engine.backends.fake_engine import EOS, FakeEngine, serving
from tests.engine.entrypoints.conftest import ROOT, Program
from tests.engine.entrypoints.deepseek_directory import write_v41
from tests.engine.entrypoints.harness import Door, chat, open_door
from tests.lived_time import until

CHAT = "/v1/chat/completions"


@asynccontextmanager
async def front_of(*engines: FakeEngine) -> AsyncIterator[Door]:
    async with serving(*engines) as urls:
        backend = RemoteBackend(urls, "vllm", {EOS}, limits=RemoteLimits())
        async with open_door(backend) as door:  # type: ignore[arg-type]
            yield door
        await backend.aclose()


async def post(url: str, asked: dict[str, Any], path: str = CHAT) -> tuple[int, Any, str]:
    async with aiohttp.ClientSession() as client, client.post(url + path, json=asked) as response:
        return response.status, response.headers, await response.text()


def is_idle(door: Door) -> bool:
    """Whether nothing is left of any request, here or at the engines."""
    return not (door.desk.admission.num_open or door.desk.clock.open or door.backend.stats().running)


async def test_the_final_usage_is_what_the_engine_said_at_the_end() -> None:
    engine = FakeEngine()
    engine.cached_tokens = 2
    async with front_of(engine) as door:
        _, _, whole = await post(door.url, chat())
        _, _, stream = await post(door.url, chat(stream=True, stream_options={"include_usage": True}))
    usage = json.loads(whole)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2 and usage["completion_tokens"] == 4
    assert '"cached_tokens":2' in stream.replace(" ", "")


async def test_all_engines_down_is_503_with_retry_after_in_every_protocol() -> None:
    engine = FakeEngine()
    async with front_of(engine) as door:
        for path, asked in ((CHAT, chat(stream=True)), ("/v1/messages", chat(max_tokens=5))):
            engine.faults = [503]
            status, headers, text = await post(door.url, asked, path)
            assert status == 503 and int(headers["Retry-After"]) >= 1, text
            assert json.loads(text)["error"]["message"]


async def test_without_engines_the_front_is_not_ready_but_need_not_be_restarted() -> None:
    engine = FakeEngine()
    engine.is_healthy = False
    async with front_of(engine) as door:
        await door.backend.fleet.look()  # type: ignore[attr-defined]
        async with aiohttp.ClientSession() as client:
            statuses = [(await client.get(door.url + path)).status for path in ("/health", "/ready")]
    assert statuses == [200, 503]


async def test_metrics_tell_of_each_engine_by_its_address() -> None:
    well, ill = FakeEngine(), FakeEngine()
    well.tokens, well.gap_s, ill.is_healthy = [11] * 1000, 0.01, False
    async with front_of(well, ill) as door, aiohttp.ClientSession() as client:
        await door.backend.fleet.look()  # type: ignore[attr-defined]
        async with client.post(door.url + CHAT, json=chat(stream=True, max_tokens=500)) as response:
            await response.content.readany()
            async with client.get(door.url + "/metrics") as scrape:
                families = text_string_to_metric_families(await scrape.text())
                told = {
                    (item.name, *item.labels.values()): item.value for family in families for item in family.samples
                }
    assert told["fleet_up", well.url] == 1 and told["fleet_up", ill.url] == 0
    assert told["fleet_requests", well.url] == 1 and told["fleet_requests", ill.url] == 0
    assert told["fleet_kv_tokens", well.url] > 1 and told["fleet_attempts_total", well.url] == 1
    assert told["fleet_circuit", well.url, "closed"] == 1 and told["fleet_circuit", well.url, "open"] == 0
    assert told["fleet_faults_total", ill.url, "unreachable"] == 0 == told["fleet_retries_total", well.url]


async def test_answers_carry_the_fingerprint_of_the_engine_that_made_them() -> None:
    engine = FakeEngine()
    async with front_of(engine) as door:
        _, _, before = await post(door.url, chat())
        await door.backend.fleet.look()  # type: ignore[attr-defined]
        _, _, after = await post(door.url, chat())
    assert json.loads(before)["system_fingerprint"] is None, "nobody has asked the engine yet"
    assert json.loads(after)["system_fingerprint"].startswith("fp_")


async def test_an_engine_that_dies_in_mid_stream_is_an_error_event() -> None:
    engine = FakeEngine()
    engine.faults = ["late"]
    async with front_of(engine) as door:
        status, _, text = await post(door.url, chat(stream=True))
        assert status == 200 and "[DONE]" not in text
        error = json.loads(text.rstrip().rsplit("data: ", 1)[1])["error"]
        assert error["type"] == "server_error" and "in the middle of the answer" in error["message"]
        engine.faults = ["late"]
        status, _, text = await post(door.url, chat())
        assert status == 500 and "in the middle of the answer" in text
        await until(lambda: is_idle(door))


async def test_a_client_that_disconnects_frees_the_remote_request_within_100_ms() -> None:
    engine = FakeEngine()
    engine.tokens, engine.gap_s = [11] * 1000, 0.01
    async with front_of(engine) as door:
        client = aiohttp.ClientSession()
        response = await client.post(door.url + CHAT, json=chat(stream=True))
        await response.content.readany()
        assert engine.running
        await client.close()
        response.close()
        assert await until(lambda: not engine.running) < 0.1
        await until(lambda: is_idle(door))


async def test_many_requests_at_once_spread_evenly_over_the_engines() -> None:
    engines = [FakeEngine() for _ in range(4)]
    for engine in engines:
        engine.gate.clear()
    async with front_of(*engines) as door:
        asked = [asyncio.ensure_future(post(door.url, chat(seed=number))) for number in range(40)]
        await until(lambda: sum(engine.num_served for engine in engines) == 40)
        for engine in engines:
            engine.gate.set()
        await asyncio.gather(*asked)
    assert [engine.num_served for engine in engines] == [10] * 4


async def test_a_front_needs_no_weights_and_speaks_deepseek_to_the_fleet(tmp_path: Path) -> None:
    directory, engine = write_v41(tmp_path / "model"), FakeEngine()
    engine.tokens, engine.finish = [19923, 14], "stop"
    async with serving(engine) as urls:
        options = ServerOptions(
            backend="vllm", endpoints=urls, tokenizer=str(directory), encoding="deepseek-v4.1", port=0, workers=1,
            served_model_name=["deepseek"],
        )  # fmt: skip
        async with create_server(options) as server:
            asked = chat(model="deepseek", thinking={"type": "disabled"}, temperature=0)
            status, _, text = await post(server.address, asked)
            assert status == 200, text
            async with aiohttp.ClientSession() as client, client.get(server.address + "/health") as response:
                assert response.status == 200
    sent = engine.bodies[0]
    assert 1 in sent["sampling_params"]["stop_token_ids"], "the model's own end of sequence"
    assert json.loads(text)["usage"]["prompt_tokens"] == len(sent["token_ids"]) > 3


def test_options_that_do_not_go_together_are_refused() -> None:
    for settings in ({"backend": "vllm"}, {"endpoints": "http://a"}, {"backend": "mock", "endpoints": "http://a"}):
        with pytest.raises(OptionError, match="--endpoints goes with"):
            ServerOptions(**settings)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="--max-num-seqs has no effect"):
        ServerOptions(backend="vllm", endpoints="http://a", max_num_seqs=3)
    with pytest.raises(OptionError, match="--tokenizer"):
        open_files(ServerOptions(backend="self", endpoints="http://a"))


def test_the_checks_of_a_real_engine_pass_on_our_own(program: Program) -> None:
    command = [sys.executable, "scripts/check_remote.py", "--kind", "self", "--url", program.url, "--prompts", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok", "FAIL"))]
    assert done.returncode == 0 and len(lines) == 17, done.stdout + done.stderr
