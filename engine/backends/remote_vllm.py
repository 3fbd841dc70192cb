"""vLLM's token-in, token-out endpoint, POST /inference/v1/generate; and our own server's, which has the same shape.

vLLM must run with `--enable-scale-out`, and with `--enable-prompt-tokens-details` for cache hits to be told. Usage
comes in an event of its own after the last tokens. The token that stopped a sequence is among its tokens; here it is
hidden.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from engine.backend import EngineRequest, RequestRefusedError
from engine.backends.balancer import Load
from engine.backends.metric_lines import MetricLines
from engine.backends.remote_constraint import structured_output
from engine.backends.remote_dialect import (
    FINISH_REASONS,
    MAX_TOKEN_ID,
    REFUSALS,
    EndpointFault,
    EngineUpdate,
    RemoteRequest,
    prompt_usage,
)
from engine.core.sampling_params import SamplingParams
from recipe.request import OutputConstraint
from recipe.stream.inference import InferenceFinishReason, PromptUsage, TokenLogprob

TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
Count = Annotated[int, msgspec.Meta(ge=0)]

_SAME_FIELDS = (
    "max_tokens", "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "min_tokens", "ignore_eos",
)  # fmt: skip
_LOAD = MetricLines("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
_CACHE = MetricLines("vllm:cache_config_info")
_CAPACITY = re.compile(rb'(?<!\w)(kv_cache_size_tokens|block_size|num_gpu_blocks)="(\d+)"')


class _Alternative(msgspec.Struct):
    token_id: TokenId
    logprob: float


class _Logprob(_Alternative):
    top_logprobs: list[_Alternative] = []


class _Logprobs(msgspec.Struct):
    """Either `content`, or the three others, in which /v1/completions tells the same: `token_id:17` is a token."""

    content: list[_Logprob] | None = None
    tokens: list[str] = []
    token_logprobs: list[float] = []
    top_logprobs: list[dict[str, float] | None] = []

    def entries(self) -> list[TokenLogprob]:
        """The log probability of each token, and its alternatives in the order of the engine."""
        if self.content is not None:
            return [
                (entry.logprob, [(top.token_id, top.logprob) for top in entry.top_logprobs]) for entry in self.content
            ]
        if not len(self.tokens) == len(self.token_logprobs) == len(self.top_logprobs):
            raise EndpointFault("the engine sent log probabilities that do not belong together")
        return [
            (logprob, [(_token_id(text), value) for text, value in (tops or {}).items()])
            for logprob, tops in zip(self.token_logprobs, self.top_logprobs, strict=True)
        ]


class _Choice(msgspec.Struct):
    token_ids: list[TokenId] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Count
    completion_tokens: Count = 0
    prompt_tokens_details: _Details | None = None

    def prompt(self) -> PromptUsage:
        details = self.prompt_tokens_details
        return prompt_usage(self.prompt_tokens, details.cached_tokens if details else None)


class _Error(msgspec.Struct):
    message: str = ""
    code: int | str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None
    system_fingerprint: str | None = None


_EVENTS = msgspec.json.Decoder(_Event)


class VllmDialect:
    """vLLM, observed with 0.32."""

    kind = "vllm"
    generate_path = "/inference/v1/generate"
    health_path = "/health"
    load_path = "/metrics"
    identity_paths: tuple[str, ...] = ("/version", "/v1/models")
    without_route = "start vLLM with --enable-scale-out, or this server with --backend vllm-completions"

    def body(self, remote: RemoteRequest) -> bytes:
        request = remote.request
        body = {
            "request_id": remote.request_id,
            "token_ids": list(request.prompt_token_ids),
            "sampling_params": self._sampling_params(remote),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.priority:
            body["priority"] = request.priority
        if request.cache_salt:
            body["cache_salt"] = cache_salt_text(request)
        return msgspec.json.encode(body)

    def reader(self, remote: RemoteRequest) -> VllmReader:
        return VllmReader(remote, hides_stop_token=False)

    def abort(self, remote: RemoteRequest) -> tuple[str, bytes] | None:
        body = {"request_ids": [f"generate-tokens-{remote.request_id}"]}
        return "/inference/v1/abort_requests", msgspec.json.encode(body)

    def load(self, body: bytes) -> Load | None:
        metrics = _LOAD.sums(body)
        requests = metrics.get("vllm:num_requests_running")
        if requests is None:
            return None
        waiting, used = metrics.get("vllm:num_requests_waiting", 0.0), metrics.get("vllm:kv_cache_usage_perc", 0.0)
        return Load(int(requests + waiting), int(used * _capacity_tokens(body)))

    def constraint(self, constraint: OutputConstraint) -> dict[str, Any]:
        name, value = structured_output(constraint)
        if name == "structural_tag":
            value = msgspec.json.encode(value).decode()
        return {"structured_outputs": {name: value}}

    def _sampling_params(self, remote: RemoteRequest) -> dict[str, Any]:
        params = remote.request.sampling_params
        if params.bad_words_token_ids:
            raise RequestRefusedError("bad_words cannot be sent to a vLLM engine, which takes them as texts only")
        return plain_sampling_params(params, remote) | dict(remote.constraint)


class VllmReader:
    """Reads events; `hides_stop_token` says that the engine does not send the token that stopped a sequence."""

    def __init__(self, remote: RemoteRequest, *, hides_stop_token: bool) -> None:
        self._num_logprobs = remote.request.sampling_params.logprobs
        self._hides_stop_token = hides_stop_token
        self._num_tokens = 0

    def read(self, payload: bytes) -> EngineUpdate:
        event = decode_event(_EVENTS, payload)
        if event.error is not None and event.error.code in REFUSALS:
            raise RequestRefusedError(f"the engine refused the request: {event.error.message:.1000}")
        if event.error is not None:
            raise EndpointFault(f"the engine failed: {event.error.message:.400}")
        usage = event.usage
        update = self._choice(event.choices[0]) if event.choices else EngineUpdate([])
        self._num_tokens += len(update.token_ids)
        hidden = update.num_hidden_tokens
        if usage is not None and usage.completion_tokens:
            hidden = max(0, usage.completion_tokens - self._num_tokens)
        prompt = None if usage is None else usage.prompt()
        return EngineUpdate(
            update.token_ids, update.logprobs, update.finish_reason, prompt, hidden, event.system_fingerprint
        )

    def _choice(self, choice: _Choice) -> EngineUpdate:
        token_ids, reason = choice.token_ids or [], finish_reason(choice.finish_reason)
        logprobs = self._logprobs(choice, len(token_ids))
        if reason is not InferenceFinishReason.Stop or self._hides_stop_token or not token_ids:
            return EngineUpdate(token_ids, logprobs, reason)
        return EngineUpdate(token_ids[:-1], None if logprobs is None else logprobs[:-1], reason, num_hidden_tokens=1)

    def _logprobs(self, choice: _Choice, num_tokens: int) -> list[TokenLogprob] | None:
        """One entry a token, with the asked number of alternatives, the most likely first."""
        if self._num_logprobs is None or not num_tokens:
            return None
        entries = [] if choice.logprobs is None else choice.logprobs.entries()
        if len(entries) != num_tokens:
            raise EndpointFault("the engine sent another number of log probabilities than of tokens")
        return [(logprob, sorted(tops, key=_likelihood)[: self._num_logprobs]) for logprob, tops in entries]


def _likelihood(alternative: tuple[int, float]) -> float:
    """Sorts the most likely first."""
    return -alternative[1]


def _token_id(text: str) -> int:
    """The token that /v1/completions writes as `token_id:17` when asked to."""
    name, _, number = text.partition(":")
    if name != "token_id" or not number.isdecimal():
        raise EndpointFault("the engine names tokens by their text in log probabilities")
    return int(number)


def plain_sampling_params(params: SamplingParams, remote: RemoteRequest) -> dict[str, Any]:
    """The fields that are no constraint; an absent one is the engine's neutral value."""
    fields: dict[str, Any] = {name: getattr(params, name) for name in _SAME_FIELDS}
    fields["stop_token_ids"] = sorted(remote.stop_token_ids)
    optional = {
        "top_k": params.top_k or None,
        "seed": params.seed,
        "logprobs": params.logprobs,
        "logit_bias": {str(token_id): bias for token_id, bias in params.logit_bias.items()} or None,
    }
    return fields | {name: value for name, value in optional.items() if value is not None}


def cache_salt_text(request: EngineRequest) -> str:
    return request.cache_salt.decode("utf-8", "replace")


def finish_reason(word: str | None) -> InferenceFinishReason | None:
    if word is None:
        return None
    if word not in FINISH_REASONS:
        raise EndpointFault(f"the engine ended the request by itself: {word:.40}")
    return FINISH_REASONS[word]


def decode_event(decoder: msgspec.json.Decoder[Any], payload: bytes) -> Any:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EndpointFault(f"the engine sent an event that cannot be read: {error}") from None


def _capacity_tokens(body: bytes) -> int:
    """How many tokens the KV cache of one rank holds, by the labels of vLLM's `cache_config_info`; 0 if not told."""
    info = next((labels for name, labels, _ in _CACHE.lines(body)), b"")
    sizes = {name: int(size) for name, size in _CAPACITY.findall(info)}
    return sizes.get(b"kv_cache_size_tokens") or sizes.get(b"block_size", 0) * sizes.get(b"num_gpu_blocks", 0)
