"""The program's options: one frozen dataclass, each field with its group, help and unit.

The command line and the configuration file are made from it: see `command_line`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from recipe.conversion_options import MAX_TOKENS_UPPER_BOUND
from recipe.markup.output_markup import TOOL_MARKERS

GROUPS = ("model", "engine", "server", "fleet", "requests", "limits", "images", "security", "mock")

REMOTE_KINDS = ("vllm", "vllm-completions", "sglang", "self")
"""The backends that are engines somewhere else."""


class OptionError(ValueError):
    """A wrong option or configuration file, in one line that says what to do."""


def option(
    default: Any, group: str, text: str, *, choices: Sequence[str] = (), metavar: str = "", shown: str = ""
) -> Any:
    """A field with what argparse needs; `shown` replaces the default in the help."""
    metadata = {"group": group, "text": text, "choices": choices, "metavar": metavar, "shown": shown}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What the program was asked to do. Sizes are MiB, times seconds; 0 means no limit where nothing else is said."""

    model: str | None = option(
        None,
        "model",
        "GGUF file, Hugging Face directory, or hub name",
        metavar="PATH|NAME",
        shown="the embedded SmolLM2-135M",
    )
    revision: str | None = option(None, "model", "revision of a hub name", shown="main")
    tokenizer: str | None = option(
        None, "model", "tokenizer.json, directory or hub name", metavar="PATH|NAME", shown="the model's own"
    )
    tokenizer_revision: str | None = option(None, "model", "revision of a tokenizer's hub name", shown="main")
    served_model_name: list[str] = option([], "model", "name clients use; may be repeated", shown="the model's own")
    chat_template: str | None = option(
        None, "model", "Jinja chat template to use instead of the model's", metavar="FILE"
    )
    encoding: str = option(
        "auto", "model", "prompt format", choices=("auto", "deepseek-v4", "deepseek-v4.1", "chat-template")
    )
    tool_markup: str = option("auto", "model", "tool calls", choices=("auto", *TOOL_MARKERS))
    reasoning_markers: str = option(
        "auto",
        "model",
        "around reasoning: auto, none, or two markers with a space between",
        metavar="'A B'",
    )
    device: str = option("auto", "engine", "where to compute", choices=("auto", "cpu", "cuda"))
    dtype: str = option(
        "auto", "engine", "number format of weights and KV", choices=("auto", "bfloat16", "float16", "float32")
    )
    max_model_len: int | None = option(
        None, "engine", "longest sequence in tokens", shown="the model's, as memory allows"
    )
    max_num_seqs: int = option(64, "engine", "sequences in one step")
    max_num_batched_tokens: int = option(1024, "engine", "tokens computed in one step")
    max_prefill_chunk_tokens: int = option(512, "engine", "prompt tokens in one step beside running answers")
    kv_cache_mib: int | None = option(
        None, "engine", "memory for the KV cache in MiB", shown="from the device's memory"
    )
    gpu_memory_utilization: float = option(0.9, "engine", "share of GPU memory to use, with --device cuda")
    attention: str = option(
        "auto", "engine", "who computes it, with --device cuda", choices=("auto", "kernel", "flashinfer", "sdpa")
    )
    enforce_eager: bool = option(False, "engine", "no CUDA graphs, with --device cuda")
    threads: int | None = option(None, "engine", "CPU threads of a step", shown="physical cores")
    pin_threads: bool = option(False, "engine", "keep each of them on a core of its own")
    cpu_kernels: str = option("auto", "engine", "compiled kernels on the CPU", choices=("auto", "off"))
    prefix_cache: bool = option(True, "engine", "reuse the KV of shared prompt beginnings")
    stop_preempted_request: bool = option(
        False, "engine", "when KV memory runs out, end a request; else it is computed again"
    )
    seed: int | None = option(None, "engine", "seed of requests that give none", shown="a fresh one each")
    warmup: str = option("fast", "engine", "what to run before the first request", choices=("none", "fast", "full"))
    host: str = option("127.0.0.1", "server", "address to listen on")
    port: int = option(7777, "server", "port to listen on")
    uds: str | None = option(None, "server", "Unix socket to listen on instead", metavar="PATH")
    page: bool = option(True, "server", "the page at / to talk to the model and to look at the server")
    workers: int = option(0, "server", "processes that prepare requests", shown="half the cores, at most 4")
    inline_preparation_bytes: int = option(
        1024, "server", "largest body that is prepared at once, without a worker; 0 leaves all to the workers"
    )
    token_cache_mib: int = option(64, "server", "memory of each worker for token IDs of text it has seen")
    backend: str = option("local", "server", "what computes tokens", choices=("local", "mock", *REMOTE_KINDS))
    endpoints: str | None = option(
        None,
        "fleet",
        "http://HOST:PORT, unix:PATH, or @FILE with one a line",
        metavar="URL,URL",
    )
    endpoint_api_key: str | None = option(None, "fleet", "API key that the engines want")
    endpoint_connect_timeout_s: float = option(3.0, "fleet", "longest time to connect to an engine")
    endpoint_first_token_timeout_s: float = option(
        120.0, "fleet", "longest wait for a first token before another engine is tried"
    )
    endpoint_health_interval_s: float = option(2.0, "fleet", "time between two looks at an engine")
    log_level: str = option("info", "server", "least level logged", choices=("debug", "info", "warning", "error"))
    disable_log_stats: bool = option(False, "server", "no line of statistics every 10 s")
    config: str | None = option(None, "server", "TOML file with any of these options", metavar="FILE")
    model_alias: list[str] = option(
        [], "requests", "further name that clients may use, * for any; may be repeated", metavar="NAME|*", shown="none"
    )
    default_thinking: bool = option(True, "requests", "thinking mode where a request does not say")
    max_tokens_bound: int = option(MAX_TOKENS_UPPER_BOUND, "requests", "largest max_tokens of a request")
    missing_reasoning: str = option(
        "fill", "requests", "history without the reasoning it had in thinking mode", choices=("fill", "reject")
    )
    web_search: str | None = option(
        None,
        "requests",
        "web search, which is not done here",
        choices=("drop", "reject"),
        shown="drop in Responses, else reject",
    )
    max_requests: int = option(1024, "limits", "requests under way at a time")
    max_preparing: int = option(256, "limits", "of them, requests whose body arrives or is prepared")
    max_queued: int = option(256, "limits", "of them, requests that wait for the engine")
    max_queued_tokens: int = option(1_000_000, "limits", "prompt tokens that wait for the engine")
    max_requests_per_key: int = option(0, "limits", "requests of one API key under way at a time")
    max_body_mib: int = option(96, "limits", "largest request body")
    max_header_kib: int = option(16, "limits", "longest header line")
    max_headers: int = option(100, "limits", "headers of a request")
    idle_timeout_s: float = option(75.0, "limits", "longest time a connection is kept without a request")
    headers_timeout_s: float = option(10.0, "limits", "longest time for headers to arrive")
    body_timeout_s: float = option(60.0, "limits", "longest time for a body to arrive")
    prepare_timeout_s: float = option(30.0, "limits", "longest preparation of a request")
    allow_image_hosts: list[str] = option(
        [], "images", "host images may come from; may be repeated", shown="any public"
    )
    allow_private_images: bool = option(False, "images", "allow image URLs with private addresses")
    image_urls: bool = option(True, "images", "fetch images by URL; else data URLs only")
    max_images: int = option(600, "images", "images in one request")
    max_image_mib: int = option(32, "images", "size of one image")
    max_total_image_mib: int = option(64, "images", "size of all images of a request")
    image_timeout_s: float = option(60.0, "images", "longest time for all images of a request")
    compile_timeout_s: float = option(30.0, "limits", "longest compilation of an output constraint")
    queue_timeout_s: float = option(300.0, "limits", "longest wait for the engine")
    first_token_timeout_s: float = option(300.0, "limits", "longest time from the queue to the first token")
    token_gap_timeout_s: float = option(60.0, "limits", "longest time between two tokens of a stream")
    send_timeout_s: float = option(30.0, "limits", "longest time that a client takes nothing of its stream")
    request_timeout_s: float = option(0.0, "limits", "longest time for a whole request")
    ping_interval_s: float = option(15.0, "limits", "silence of a stream after which it is kept alive")
    drain_seconds: float = option(30.0, "limits", "time for open requests to finish after SIGTERM; 0 ends them at once")
    api_key: list[str] = option([], "security", "key that clients must send; may be repeated")
    api_keys: str | None = option(None, "security", "TOML file of keys: name, sha256, priority, limits", metavar="FILE")
    prefix_cache_per_key: bool = option(False, "security", "no API key's requests find the KV of another's prompts")
    tls_cert: str | None = option(None, "security", "certificate chain in PEM; serves HTTPS", metavar="FILE")
    tls_key: str | None = option(None, "security", "private key of --tls-cert in PEM", metavar="FILE")
    cors_origin: list[str] = option([], "security", "origin whose pages may read answers, or *; may be repeated")
    log_bodies: bool = option(False, "security", "write request bodies to the access log")
    mock_tokens: int = option(64, "mock", "tokens in every answer")
    mock_rate: float = option(0.0, "mock", "tokens a second of one stream", shown="as fast as possible")
    mock_script: str | None = option(None, "mock", "recorded outputs to play, a JSON object a line", metavar="FILE")

    def __post_init__(self) -> None:
        """Raises `OptionError` for a number that no option of its kind can have."""
        for item in fields(self):
            value = getattr(self, item.name)
            low, high = _RANGES.get(item.name, (0, math.inf))
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and not (low <= value <= high and math.isfinite(value)):
                allowed = f">= {low}" if high == math.inf else f"in [{low}, {high}]"
                raise OptionError(f"--{item.name.replace('_', '-')} must be {allowed}. Given: {value}")
        if (self.backend in REMOTE_KINDS) != (self.endpoints is not None):
            raise OptionError(f"--endpoints goes with --backend {', '.join(REMOTE_KINDS)}, which needs it")
        if self.backend in REMOTE_KINDS:
            self._check_remote()

    def _check_remote(self) -> None:
        """What the engines were started with cannot be told from here."""
        for item in fields(self):
            is_theirs = item.metadata["group"] == "engine" and item.name not in ("max_model_len", "seed")
            if is_theirs and getattr(self, item.name) != item.default:
                flag = item.name.replace("_", "-")
                raise OptionError(f"--{flag} has no effect with --backend {self.backend}: give it to the engines")


_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    **dict.fromkeys(("endpoint_connect_timeout_s", "endpoint_first_token_timeout_s"), (0.001, math.inf)),
    "endpoint_health_interval_s": (0.1, math.inf),
    **dict.fromkeys(("max_body_mib", "max_header_kib", "max_headers", "max_tokens_bound"), (1, math.inf)),
}
"""What numbers may be, where it is not any from 0 on."""
