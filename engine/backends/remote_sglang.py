"""SGLang's native endpoint, POST /generate, as of 0.5.

An event says how many tokens there are by now, and carries either all of them or the new ones, as the engine was
started: the new ones are the last in both cases. Log probabilities come alike.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from engine.backend import RequestRefusedError
from engine.backends.balancer import Load
from engine.backends.remote_constraint import alternatives_regex, ebnf, structured_output
from engine.backends.remote_dialect import EndpointFault, EngineUpdate, RemoteRequest, prompt_usage
from engine.backends.remote_vllm import Count, TokenId, cache_salt_text, decode_event, finish_reason
from recipe.request import OutputConstraint
from recipe.stream.inference import InferenceFinishReason, TokenLogprob

_SAME_FIELDS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "ignore_eos",
)  # fmt: skip
_MAX_REPETITION_PENALTY = 2.0

Entry = tuple[float, TokenId, Any]
"""A log probability, the token's ID, and its text or null."""


class _FinishReason(msgspec.Struct):
    type: str
    message: str | None = None


class _MetaInfo(msgspec.Struct):
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count | None = None
    finish_reason: _FinishReason | None = None
    output_token_logprobs: list[Entry] | None = None
    output_top_logprobs: list[list[Entry] | None] | None = None


class _Error(msgspec.Struct):
    message: str = ""


class _Event(msgspec.Struct):
    output_ids: list[TokenId] = []
    meta_info: _MetaInfo | None = None
    error: _Error | None = None


class _RankLoad(msgspec.Struct):
    num_running_reqs: Annotated[int, msgspec.Meta(ge=0)] = 0
    num_waiting_reqs: Annotated[int, msgspec.Meta(ge=0)] = 0
    num_used_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0


class _Loads(msgspec.Struct):
    loads: list[_RankLoad] = []


_EVENTS = msgspec.json.Decoder(_Event)
_LOADS = msgspec.json.Decoder(_Loads)


class SglangDialect:
    """SGLang, read from 0.5.23."""

    kind = "sglang"
    generate_path = "/generate"
    health_path = "/health"
    load_path = "/v1/loads"
    identity_paths: tuple[str, ...] = ("/server_info",)
    without_route = "the endpoints must be SGLang servers of a model that generates"

    def body(self, remote: RemoteRequest) -> bytes:
        request, params = remote.request, remote.request.sampling_params
        body: dict[str, Any] = {
            "rid": remote.request_id,
            "input_ids": list(request.prompt_token_ids),
            "sampling_params": self._sampling_params(remote),
            "stream": True,
        }
        if params.logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": params.logprobs}
        if request.priority:
            body["priority"] = request.priority
        if request.cache_salt:
            body["extra_key"] = cache_salt_text(request)
        return msgspec.json.encode(body)

    def reader(self, remote: RemoteRequest) -> SglangReader:
        return SglangReader(remote)

    def abort(self, remote: RemoteRequest) -> tuple[str, bytes] | None:
        return "/abort_request", msgspec.json.encode({"rid": remote.request_id})

    def load(self, body: bytes) -> Load | None:
        try:
            loads = _LOADS.decode(body).loads
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return Load(
            sum(rank.num_running_reqs + rank.num_waiting_reqs for rank in loads),
            sum(rank.num_used_tokens for rank in loads),
        )

    def constraint(self, constraint: OutputConstraint) -> dict[str, Any]:
        name, value = structured_output(constraint)
        match name:
            case "choice":
                return {"regex": alternatives_regex(value)}
            case "grammar":
                return {"ebnf": ebnf(value)}
            case "regex":
                return {"regex": value}
        return {"json_schema" if name == "json" else name: msgspec.json.encode(value).decode()}

    def _sampling_params(self, remote: RemoteRequest) -> dict[str, Any]:
        params = remote.request.sampling_params
        if params.bad_words_token_ids:
            raise RequestRefusedError("bad_words cannot be sent to an SGLang engine")
        if params.repetition_penalty > _MAX_REPETITION_PENALTY:
            raise RequestRefusedError(
                f"repetition_penalty must be <= {_MAX_REPETITION_PENALTY:g} for an SGLang engine. "
                f"Given: {params.repetition_penalty:g}"
            )
        fields: dict[str, Any] = {name: getattr(params, name) for name in _SAME_FIELDS}
        fields |= {"max_new_tokens": params.max_tokens, "stop_token_ids": sorted(remote.stop_token_ids)}
        optional = {
            "min_new_tokens": params.min_tokens or None,
            "top_k": params.top_k or None,
            "sampling_seed": params.seed,
            "logit_bias": {str(token_id): bias for token_id, bias in params.logit_bias.items()} or None,
        }
        return fields | {name: value for name, value in optional.items() if value is not None} | dict(remote.constraint)


class SglangReader:
    """Reads events, which count from the beginning of the stream."""

    def __init__(self, remote: RemoteRequest) -> None:
        self._num_logprobs = remote.request.sampling_params.logprobs
        self._stop_token_ids = remote.stop_token_ids
        self._num_tokens = 0

    def read(self, payload: bytes) -> EngineUpdate:
        event = decode_event(_EVENTS, payload)
        if event.error is not None and not self._num_tokens:  # what is wrong with a request comes so, too
            raise RequestRefusedError(f"the engine refused the request: {event.error.message:.1000}")
        if event.error is not None:
            raise EndpointFault(f"the engine failed: {event.error.message:.400}")
        meta = event.meta_info
        if meta is None:
            raise EndpointFault("the engine sent an event without meta_info")
        num_new = meta.completion_tokens - self._num_tokens
        if not 0 <= num_new <= len(event.output_ids):
            raise EndpointFault("the engine sent another number of tokens than it counts")
        self._num_tokens = meta.completion_tokens
        token_ids = event.output_ids[len(event.output_ids) - num_new :]
        return self._update(meta, token_ids, self._logprobs(meta, num_new))

    def _update(self, meta: _MetaInfo, token_ids: list[int], logprobs: list[TokenLogprob] | None) -> EngineUpdate:
        usage = prompt_usage(meta.prompt_tokens, meta.cached_tokens)
        told = meta.finish_reason
        if told is not None and told.type == "abort":
            raise EndpointFault(f"the engine ended the request by itself: {told.message or 'abort':.400}")
        reason = None if told is None else finish_reason(told.type)
        is_stop = reason is InferenceFinishReason.Stop and token_ids and token_ids[-1] in self._stop_token_ids
        if not is_stop:
            return EngineUpdate(token_ids, logprobs, reason, usage)
        return EngineUpdate(token_ids[:-1], None if logprobs is None else logprobs[:-1], reason, usage, 1)

    def _logprobs(self, meta: _MetaInfo, num_new: int) -> list[TokenLogprob] | None:
        if self._num_logprobs is None or not num_new:
            return None
        chosen = meta.output_token_logprobs or []
        if len(chosen) < num_new:
            raise EndpointFault("the engine sent fewer log probabilities than tokens")
        tops = (meta.output_top_logprobs or [])[-num_new:] if self._num_logprobs else []
        tops = tops if len(tops) == num_new else [None] * num_new
        return [
            (entry[0], [(token_id, logprob) for logprob, token_id, _ in top or []])
            for entry, top in zip(chosen[-num_new:], tops, strict=True)
        ]
