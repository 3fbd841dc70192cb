"""Small servers that speak what vLLM and SGLang were recorded to speak, and that can be told to go wrong.

Each request takes the next entry of `faults`, if there is one:
`stall` answers nothing; `headers` only headers; `reset` cuts the connection before the first token; `half` cuts it in
the middle of the first line; `garbage` sends an event that is no JSON; `short` ends the stream without a finish;
`late` cuts the connection after two tokens, `late_error` sends an error event there, `refusal` one at the beginning; a
number is an HTTP status.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

EOS = 2


class FakeEngine:
    """One engine. `running` holds the IDs of the requests under way, `bodies` every request that came."""

    generate_path = "/inference/v1/generate"
    abort_path = "/inference/v1/abort_requests"

    def __init__(self) -> None:
        self.tokens = [11, 12, 13]
        self.finish = "stop"
        self.cached_tokens = 0
        self.gap_s = 0.0
        self.faults: list[str | int] = []
        self.is_healthy = True
        self.bodies: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.running: set[str] = set()
        self.connections: set[Any] = set()
        self.other_requests = 0
        self.other_kv = 0.0
        self.url = ""

    @property
    def num_served(self) -> int:
        return len(self.bodies)

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post(self.generate_path, self.generate)
        app.router.add_post(self.abort_path, self.abort)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/loads", self.loads)
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        lines = [
            'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0',
            f'vllm:num_requests_running{{engine="0",model_name="m"}} {len(self.running) + self.other_requests}.0',
            'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0',
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {self.other_kv}',
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def loads(self, request: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_running_reqs": self.other_requests, "num_used_tokens": 4000}]})

    async def abort(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids = body.get("request_ids") or [body["rid"]]
        self.aborted += ids
        self.running -= {name.removeprefix("generate-tokens-") for name in ids}
        return web.json_response({})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.connections.add(request.transport)
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, int):
            told = {"message": f"fake {fault}", "type": "BadRequestError", "param": None, "code": fault}
            return web.json_response({"error": told}, status=fault)
        name = body.get("request_id") or body["rid"]
        self.running.add(name)
        try:
            return await self.stream(request, body, fault)
        finally:
            self.running.discard(name)

    async def stream(self, request: web.Request, body: dict[str, Any], fault: str | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if fault == "stall":
            await asyncio.sleep(60)
        if fault == "reset":
            return self.cut(request, response)
        await response.prepare(request)
        if fault == "headers":
            await asyncio.sleep(60)
        if fault in ("half", "garbage"):
            await response.write(b'data: {"choices": [{"tok' if fault == "half" else b"data: nonsense\n\n")
            return self.cut(request, response) if fault == "half" else response
        events = self.events(body)
        for number, event in enumerate(events):
            if number == 2 and fault == "late":
                return self.cut(request, response)
            if number == 0 and fault == "refusal":
                event = {"error": {"message": "fake refusal", "type": "BadRequestError", "code": 400}}
            if number == 2 and fault == "late_error":
                event = {"error": {"message": "EngineCore died", "code": 500}}
            if number == 2 and fault == "short":
                return response
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await asyncio.sleep(self.gap_s)
        await response.write(b"data: [DONE]\n\n")
        return response

    @staticmethod
    def cut(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return response

    def generated(self, body: dict[str, Any], limit: int) -> tuple[list[int], str]:
        """The tokens of an answer, its stop token among them, and why it ends."""
        tokens = [*self.tokens, EOS] if self.finish == "stop" else self.tokens
        return (tokens, self.finish) if len(tokens) <= limit else (tokens[:limit], "length")

    def events(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """vLLM: an event a token, then the usage."""
        params = body["sampling_params"]
        tokens, reason = self.generated(body, params["max_tokens"])
        events: list[dict[str, Any]] = []
        for number, token_id in enumerate(tokens):
            choice: dict[str, Any] = {"index": 0, "token_ids": [token_id], "finish_reason": None, "logprobs": None}
            if (count := params.get("logprobs")) is not None:
                tops = [
                    {"token_id": token_id + place, "logprob": -0.5 - place, "rank": 1} for place in range(count + 1)
                ]
                entry = {"token_id": token_id, "logprob": -0.5, "rank": 1, "top_logprobs": tops[::-1]}
                choice["logprobs"] = {"content": [entry]}
            if number == len(tokens) - 1:
                choice |= {"finish_reason": reason, "stop_reason": None}
            events.append({"request_id": "generate-tokens-x", "choices": [choice]})
        events[0]["prompt_token_ids"] = body["token_ids"]
        usage = {"prompt_tokens": len(body["token_ids"]), "completion_tokens": len(tokens), "total_tokens": 0}
        details = {"prompt_tokens_details": {"cached_tokens": self.cached_tokens}}
        return [*events, {"choices": [], "usage": usage | details}]


class FakeSglang(FakeEngine):
    """SGLang: every event counts from the beginning; `is_incremental` sends the new tokens only."""

    generate_path = "/generate"
    abort_path = "/abort_request"
    is_incremental = False

    def events(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        tokens, reason = self.generated(body, body["sampling_params"]["max_new_tokens"])
        events = []
        for end in range(1, len(tokens) + 1):
            start = end - 1 if self.is_incremental else 0
            meta: dict[str, Any] = {
                "id": body["rid"],
                "prompt_tokens": len(body["input_ids"]),
                "completion_tokens": end,
                "cached_tokens": self.cached_tokens,
                "finish_reason": None if end < len(tokens) else {"type": reason, "matched": tokens[-1]},
            }
            if body.get("return_logprob"):
                meta["output_token_logprobs"] = [[-0.5, token_id, None] for token_id in tokens[start:end]]
                tops = [[[-0.5, token_id, None], [-1.5, token_id + 1, None]] for token_id in tokens[start:end]]
                meta["output_top_logprobs"] = tops
            events.append({"text": "", "output_ids": tokens[start:end], "meta_info": meta})
        return events


@asynccontextmanager
async def serving(*engines: FakeEngine) -> AsyncIterator[str]:
    """Serve the engines; the value is their URLs with commas between."""
    runners = []
    for engine in engines:
        runner = web.AppRunner(engine.application(), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        runners.append(runner)
    try:
        yield ",".join(engine.url for engine in engines)
    finally:
        for runner in runners:
            await runner.cleanup()
