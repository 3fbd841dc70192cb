"""A vLLM that was started without `--enable-scale-out`: tokens through POST /v1/completions, in its own shape.

Every sampling parameter is sent, since the engine would take an absent one from the model's generation config. Closing
the connection ends a request.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.backends.remote_dialect import RemoteRequest
from engine.backends.remote_vllm import VllmDialect, cache_salt_text


class VllmCompletionsDialect(VllmDialect):
    """vLLM's plain server, observed with 0.32. It also detokenises, which costs it some time."""

    kind = "vllm-completions"
    generate_path = "/v1/completions"
    without_route = "the endpoints must be vLLM servers of a model that generates"

    def body(self, remote: RemoteRequest) -> bytes:
        request = remote.request
        body: dict[str, Any] = {
            "request_id": remote.request_id,
            "prompt": list(request.prompt_token_ids),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "top_k": 0,
            **self._sampling_params(remote),
        }
        if request.sampling_params.logprobs is not None:
            body["return_tokens_as_token_ids"] = True
        if request.priority:
            body["priority"] = request.priority
        if request.cache_salt:
            body["cache_salt"] = cache_salt_text(request)
        return msgspec.json.encode(body)

    def abort(self, remote: RemoteRequest) -> tuple[str, bytes] | None:
        return None
