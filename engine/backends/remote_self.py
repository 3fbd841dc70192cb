"""Our own server as the engine of another: in a process of its own on the same machine, or anywhere.

The wire format is that of vLLM, with three differences: constraints travel as they are, bad words as tokens, and the
token that stopped a sequence is counted but not sent. Closing the connection ends a request.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.backends.balancer import Load
from engine.backends.metric_lines import MetricLines
from engine.backends.remote_dialect import RemoteRequest
from engine.backends.remote_vllm import VllmDialect, VllmReader, plain_sampling_params
from recipe.request import OutputConstraint

_BLOCK_TOKENS = 16
_LOAD = MetricLines("engine_running_sequences", "engine_waiting_sequences", "engine_kv_blocks_used")


class SelfDialect(VllmDialect):
    """`server.py`, in the version of this one."""

    kind = "self"
    without_route = "the endpoints must be servers of this program, in this version"

    def reader(self, remote: RemoteRequest) -> VllmReader:
        return VllmReader(remote, hides_stop_token=True)

    def abort(self, remote: RemoteRequest) -> tuple[str, bytes] | None:
        return None

    def load(self, body: bytes) -> Load | None:
        metrics = _LOAD.sums(body)
        running = metrics.get("engine_running_sequences")
        if running is None:
            return None
        blocks = metrics.get("engine_kv_blocks_used", 0.0)
        return Load(int(running + metrics.get("engine_waiting_sequences", 0.0)), int(blocks) * _BLOCK_TOKENS)

    def constraint(self, constraint: OutputConstraint) -> dict[str, Any]:
        return {"output_constraint": msgspec.to_builtins(constraint)}

    def _sampling_params(self, remote: RemoteRequest) -> dict[str, Any]:
        params = remote.request.sampling_params
        fields = plain_sampling_params(params, remote) | dict(remote.constraint)
        if params.bad_words_token_ids:
            fields["bad_words_token_ids"] = [list(word) for word in params.bad_words_token_ids]
        return fields
