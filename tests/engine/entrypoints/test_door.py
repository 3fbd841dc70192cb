"""The door as clients and operators see it: three protocols, keys, CORS, TLS, overload, metrics, log lines."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.entrypoints.options import OptionError
from tests.engine.entrypoints.harness import BODIES, Door, ScriptedBackend, chat, open_door, raw_request
from tests.lived_time import HANG_S, until

CHAT = "/v1/chat/completions"
SEARCH: dict[str, Any] = {
    "/v1/responses": {"model": "m", "input": "hi", "tools": [{"type": "web_search"}]},
    "/v1/messages": chat(max_tokens=9, tools=[{"type": "web_search_20250305", "name": "web_search"}]),
}


async def send(door: Door, path: str, body: Any = None, **headers: str) -> tuple[int, str, Any]:
    method = "GET" if body is None else "POST"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, door.url + path, json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.text(), answer.headers


@pytest.mark.parametrize("path", BODIES)
async def test_whole_and_streamed_answers_have_their_content_types_and_no_cache_header(path: str) -> None:
    async with open_door() as door:
        status, whole, headers = await send(door, path, BODIES[path])
        assert status == 200 and headers["Content-Type"].startswith("application/json")
        assert "word word word" in whole and "Cache-Control" not in headers
        status, streamed, headers = await send(door, path, BODIES[path] | {"stream": True})
        assert status == 200 and headers["Content-Type"].startswith("text/event-stream")
        assert streamed.count("word ") >= 3 and "Cache-Control" not in headers
        assert door.is_idle()


@pytest.mark.parametrize("path", BODIES)
async def test_an_empty_object_is_a_400(path: str) -> None:
    async with open_door() as door:
        status, text, _ = await send(door, path, {})
        assert status == 400 and json.loads(text)["error"]["type"] == "invalid_request_error"
        assert not door.backend.requests


@pytest.mark.parametrize("path", SEARCH)
async def test_declared_web_search_is_dropped_or_refused_as_the_server_is_told(path: str) -> None:
    for setting, status in (("drop", 200), ("reject", 400)):
        async with open_door(web_search=setting) as door:
            assert (await send(door, path, SEARCH[path]))[0] == status


async def test_the_backend_sees_the_settings_of_the_request() -> None:
    async with open_door() as door:
        await send(door, CHAT, chat(temperature=0.25, top_p=0.5, seed=7, max_tokens=11))
        await send(door, CHAT, chat())
        params = door.backend.requests[0].sampling_params
        assert (params.temperature, params.top_p, params.seed, params.max_tokens) == (0.25, 0.5, 7, 11)
        seeds = {request.sampling_params.seed for request in door.backend.requests}
        assert len(seeds) == 2 and None not in seeds


async def test_every_route_but_health_wants_a_key_and_says_so_in_its_protocol(tmp_path: Path) -> None:
    async with open_door(api_key=["s3cret"]) as door:
        for path, body in [*BODIES.items(), ("/metrics", None), ("/v1/models", None), ("/nowhere", None)]:
            status, text, headers = await send(door, path, body)
            assert status == 401 and headers["WWW-Authenticate"] == "Bearer" and "s3cret" not in text
            assert (json.loads(text).get("type") == "error") is path.endswith("messages")
        assert not door.backend.requests
        assert (await send(door, "/health"))[0] == 200
        assert (await send(door, CHAT, chat(), Authorization="Bearer s3cret"))[0] == 200
        assert (await send(door, "/v1/messages", BODIES["/v1/messages"], **{"x-api-key": "s3cret"}))[0] == 200


async def test_pages_of_other_origins_read_nothing_unless_the_server_is_told() -> None:
    origin = {"Origin": "https://app.example"}
    async with open_door() as door:
        _, _, headers = await send(door, CHAT, chat(), **origin)
        assert not [name for name in headers if name.startswith("Access-Control")]
    async with open_door(cors_origin=["https://app.example"], api_key=["k"]) as door:
        preflight = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}
        async with aiohttp.ClientSession() as session, session.options(door.url + CHAT, headers=preflight) as answer:
            assert answer.status == 204 and "POST" in answer.headers["Access-Control-Allow-Methods"]
            assert answer.headers["Access-Control-Allow-Headers"] == "x-api-key"
        for body in (chat(), chat(stream=True)):
            _, _, headers = await send(door, CHAT, body, **origin, Authorization="Bearer k")
            assert headers["Access-Control-Allow-Origin"] == "https://app.example"
        _, _, headers = await send(door, CHAT, chat(), Origin="https://evil.example", Authorization="Bearer k")
        assert "Access-Control-Allow-Origin" not in headers


def certificate(folder: Path) -> dict[str, str]:
    paths = {"tls_key": str(folder / "key.pem"), "tls_cert": str(folder / "cert.pem")}
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=localhost", "-days", "2", "-keyout", paths["tls_key"], "-out", paths["tls_cert"]]
    subprocess.run(command, check=True, capture_output=True)
    return paths


async def test_a_disconnect_under_tls_frees_the_stream_too(tmp_path: Path) -> None:
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    backend = ScriptedBackend(tokens=10**6, gap_s=0.01)
    async with open_door(backend, **certificate(tmp_path)) as door:
        for end in ("close", "abort"):
            reader, writer = await asyncio.open_connection(*door.address, ssl=trust)
            writer.write(raw_request(CHAT, chat(stream=True)))
            await reader.readuntil(b"word")
            if end == "abort":
                writer.transport.abort()
            else:
                writer.close()
            assert await until(door.is_idle) < 0.3


async def test_a_certificate_that_cannot_be_read_is_a_line_that_names_it(tmp_path: Path) -> None:
    for settings in ({"tls_cert": str(tmp_path / "none.pem")}, {"tls_key": "alone.pem"}):
        with pytest.raises(OptionError, match="tls-cert"):
            async with open_door(**settings):
                pass


async def test_beyond_a_limit_the_answer_is_immediate_and_truthful_and_the_rest_still_answers() -> None:
    backend = ScriptedBackend(ready_s=60.0)
    async with open_door(backend, max_queued=2) as door:
        waiting = [asyncio.ensure_future(send(door, CHAT, chat())) for _ in range(2)]
        await until(lambda: len(backend.open) == 2)
        status, text, headers = await send(door, CHAT, chat())
        assert status == 503 and json.loads(text)["error"]["code"] == "overloaded"
        assert 1 <= int(headers["Retry-After"]) <= 300
        status, text, headers = await send(door, "/v1/messages", BODIES["/v1/messages"])
        assert status == 529 and json.loads(text)["error"]["type"] == "overloaded_error" and headers["Retry-After"]
        assert (await send(door, "/health"))[0] == 200
        assert (await send(door, "/v1/messages/count_tokens", chat()))[0] == 200
        assert 'server_rejections_total{cause="queued"} 2' in (await send(door, "/metrics"))[1]
        for task in waiting:
            task.cancel()
        await until(door.is_idle)


async def test_a_key_at_its_own_limit_is_told_429_in_each_envelope(tmp_path: Path) -> None:
    backend = ScriptedBackend(ready_s=60.0)
    async with open_door(backend, api_key=["a", "b"], max_requests_per_key=1) as door:
        busy = asyncio.ensure_future(send(door, CHAT, chat(), **{"x-api-key": "a"}))
        await until(lambda: len(backend.open) == 1)
        status, text, _ = await send(door, CHAT, chat(), **{"x-api-key": "a"})
        assert status == 429 and json.loads(text)["error"]["code"] == "rate_limit_exceeded"
        status, text, _ = await send(door, "/v1/messages", BODIES["/v1/messages"], **{"x-api-key": "a"})
        assert status == 429 and json.loads(text)["error"]["type"] == "rate_limit_error"
        other = asyncio.ensure_future(send(door, CHAT, chat(), **{"x-api-key": "b"}))
        await until(lambda: len(backend.open) == 2)
        busy.cancel()
        other.cancel()
        await until(door.is_idle)


async def test_metrics_parse_and_count_what_happened() -> None:
    async with open_door(ScriptedBackend(tokens=5)) as door:
        for path, body in BODIES.items():
            await send(door, path, body)
            await send(door, path, body | {"stream": True})
        await send(door, CHAT, {})
        _, text, headers = await send(door, "/metrics")
        assert headers["Content-Type"].startswith("text/plain")
    samples = {
        (sample.name, *(label for _, label in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["server_requests_total", "ok", "chat_completions"] == 2
    assert samples["server_requests_total", "invalid_request_error", "chat_completions"] == 1
    assert samples["server_completion_tokens_total",] == 30
    assert samples["server_prompt_tokens_total",] > 30
    for name in ("time_to_first_token", "queue", "prepare"):
        assert samples[f"server_{name}_seconds_count",] >= 6
    assert samples["server_inter_token_seconds_count",] == 3 * 4
    assert samples["server_time_to_first_token_seconds_bucket", "+Inf"] == 6
    assert samples["engine_up",] == 1 and samples["server_admitted_requests", "running"] == 0


async def test_a_request_leaves_one_structured_line_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "access"):
        logging.getLogger("access").propagate = True
        secret = [{"role": "user", "content": "the secret word is xyzzy"}]
        async with open_door(api_key=["k"]) as door:
            await send(door, CHAT, chat(messages=secret), **{"x-api-key": "k", "x-request-id": "mine"})
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "access"]
    assert len(lines) == 1 and "xyzzy" not in caplog.text
    line = lines[0]
    assert (line["request_id"], line["protocol"], line["key"], line["status"]) == (
        "mine",
        "chat_completions",
        "key",
        200,
    )
    assert line["outcome"] == "ok" and line["completion_tokens"] == 3 and line["prompt_tokens"] > 3
    assert line["total_ms"] >= line["prepare_ms"] > 0


async def test_bodies_are_logged_when_the_server_is_asked_to(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "access"):
        logging.getLogger("access").propagate = True
        async with open_door(log_bodies=True) as door:
            await send(door, CHAT, chat(messages=[{"role": "user", "content": "xyzzy"}]))
    assert "xyzzy" in caplog.text


async def test_timings_come_on_request_and_in_no_events_way() -> None:
    async with open_door() as door:
        _, text, headers = await send(door, CHAT, chat(), **{"x-timings": "1"})
        assert "prepare;dur=" in headers["Server-Timing"] and "first_token;dur=" in headers["Server-Timing"]
        _, text, _ = await send(door, CHAT, chat(stream=True), **{"x-timings": "1"})
        timings = json.loads(text.split(": timings ")[1].split("\n")[0])
        assert timings["first_token_ms"] > 0 and text.endswith("data: [DONE]\n\n")
        _, text, headers = await send(door, CHAT, chat())
        assert "Server-Timing" not in headers and "timings" not in text


async def test_a_client_of_http_1_0_gets_a_stream_that_ends_with_its_connection() -> None:
    async with open_door() as door:
        reader, writer = await asyncio.open_connection(*door.address)
        writer.write(raw_request(CHAT, chat(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0"))
        text = await asyncio.wait_for(reader.read(), HANG_S)
        assert text.startswith(b"HTTP/1.0 200") and b"chunked" not in text and text.endswith(b"data: [DONE]\n\n")
        writer.close()


async def test_pipelined_requests_on_one_connection_are_answered_in_order() -> None:
    async with open_door() as door:
        reader, writer = await asyncio.open_connection(*door.address)
        ids = [f"number-{index}" for index in range(6)]
        writer.write(b"".join(raw_request(CHAT, chat(stream=i % 2 == 0), f"x-request-id: {ids[i]}") for i in range(6)))
        text = b""
        while text.count(b'"finish_reason":"stop"') < 6:
            text += await asyncio.wait_for(reader.read(1 << 16), HANG_S)
        assert sorted(ids, key=lambda name: text.index(name.encode())) == ids
        writer.close()


async def test_a_fast_stream_arrives_whole_and_in_order_however_its_frames_are_joined() -> None:
    async with open_door(ScriptedBackend(tokens=500)) as door:
        _, text, _ = await send(door, CHAT, chat(stream=True))
        events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
        assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "word " * 500
        assert len(events) >= 500
