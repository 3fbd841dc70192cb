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
DEATH = {
    "error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None, "code": 500}
}
REFUSAL = {"error": {"message": "fake refusal", "type": "BadRequestError", "param": None, "code": 400}}


class FakeEngine:
    """One engine. `running` holds the IDs of the requests under way, `bodies` every request that came.

    While `gate` is cleared, every stream stands still behind its next event.
    """

    generate_path = "/inference/v1/generate"
    abort_path: str | None = "/inference/v1/abort_requests"
    cache_config = (
        'vllm:cache_config_info{_block_size_resolved="True",block_size="128",effective_attention_block_size="256",'
        'engine="0",kv_cache_size_tokens="46592",mamba_block_size="512",num_cpu_blocks="None",num_gpu_blocks="364",'
        'num_gpu_blocks_override="None"} 1.0'
    )

    def __init__(self) -> None:
        self.tokens = [11, 12, 13]
        self.finish = "stop"
        self.cached_tokens = 0
        self.gap_s = 0.0
        self.gate = asyncio.Event()
        self.gate.set()
        self.faults: list[str | int] = []
        self.is_healthy = True
        self.bodies: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.running: set[str] = set()
        self.connections: set[Any] = set()
        self.other_requests = 0
        self.other_kv = 0.0
        self.version = "0.32.0"
        self.url = ""

    @property
    def num_served(self) -> int:
        return len(self.bodies)

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post(self.generate_path, self.generate)
        if self.abort_path is not None:
            app.router.add_post(self.abort_path, self.abort)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/loads", self.loads)
        app.router.add_get("/version", self.show_version)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/server_info", self.server_info)
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        lines = [
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            f'vllm:num_requests_running{{engine="0",model_name="m"}} {len(self.running) + self.other_requests}.0',
            'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0',
            'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0',
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {self.other_kv}',
            self.cache_config,
            'vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.796077969198555e+09',
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def show_version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version}) if self.version else web.Response(status=404)

    async def models(self, request: web.Request) -> web.Response:
        model = {"id": "m", "object": "model", "created": 1796078147, "owned_by": "vllm", "root": "/models/m"}
        more = {"parent": None, "max_model_len": 4096, "permission": [{"id": "modelperm-a8bf", "group": None}]}
        served = {"object": "list", "data": [model | more]}
        return web.json_response(served) if self.version else web.json_response({"detail": "Not Found"}, status=404)

    async def server_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "/models/m", "version": self.version, "tp_size": 8, "internal": []})

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
        for number, event in enumerate([REFUSAL] if fault == "refusal" else self.events(body)):
            if number == 2 and fault == "late":
                return self.cut(request, response)
            if number == 2 and fault == "late_error":
                event = DEATH
            if number == 2 and fault == "short":
                return response
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await self.gate.wait()
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
            choice: dict[str, Any] = {"index": 0, "finish_reason": None, "stop_reason": None, "token_ids": [token_id]}
            choice |= {"routed_experts": None, "sampling_mask": None, "weight_versions": None, "logprobs": None}
            if (count := params.get("logprobs")) is not None:
                tops = [
                    {"token_id": token_id + place, "logprob": -0.5 - place, "rank": 1} for place in range(count + 1)
                ]
                entry = {"token_id": token_id, "logprob": -0.5, "rank": 1, "top_logprobs": tops[::-1]}
                choice["logprobs"] = {"content": [entry]}
            if number == len(tokens) - 1:
                versions = [{"version": "default", "start": 0, "end": len(tokens)}]
                choice |= {"finish_reason": reason, "weight_versions": versions}
            head = {"request_id": f"generate-tokens-{body['request_id']}", "usage": None, "output_mode": "tokens"}
            events.append(head | {"choices": [choice]})
        return [*events, {"usage": self.usage(len(body["token_ids"]), len(tokens)), "choices": []}]

    def usage(self, num_prompt_tokens: int, num_tokens: int) -> dict[str, Any]:
        total = {"prompt_tokens": num_prompt_tokens, "total_tokens": num_prompt_tokens + num_tokens}
        details = {"prompt_tokens_details": {"cached_tokens": self.cached_tokens}}
        return total | {"completion_tokens": num_tokens} | details


class FakeCompletions(FakeEngine):
    """vLLM as it is started by default: no route for tokens, none for aborts, and text beside the tokens."""

    generate_path = "/v1/completions"
    abort_path = None

    def events(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        assert body["return_token_ids"] is True
        tokens, reason = self.generated(body, body["max_tokens"])
        events: list[dict[str, Any]] = []
        for number, token_id in enumerate(tokens):
            choice: dict[str, Any] = {"index": 0, "text": "" if token_id == EOS else "x", "logprobs": None}
            choice |= {"finish_reason": None, "stop_reason": None, "prompt_token_ids": None, "token_ids": [token_id]}
            if (count := body.get("logprobs")) is not None:
                choice["logprobs"] = self.logprobs(token_id, count, body.get("return_tokens_as_token_ids"))
            if number == len(tokens) - 1:
                choice["finish_reason"] = reason
            events.append({"id": f"cmpl-{body['request_id']}", "object": "text_completion", "choices": [choice]})
        events[0]["choices"][0]["prompt_token_ids"] = body["prompt"]
        usage = self.usage(len(body["prompt"]), len(tokens))
        return [*events, {"choices": [], "usage": usage, "system_fingerprint": "vllm-0.32.0-662d9fe4"}]

    @staticmethod
    def logprobs(token_id: int, count: int, as_ids: bool | None) -> dict[str, Any]:
        prefix = "token_id:" if as_ids else "x"
        tops = {f"{prefix}{token_id + place}": -0.5 - place for place in range(count + 1)}
        own = {"tokens": [f"{prefix}{token_id}"], "token_logprobs": [-0.5]}
        return own | {"text_offset": [0], "top_logprobs": [dict(reversed(tops.items()))]}


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
