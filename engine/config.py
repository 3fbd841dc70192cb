"""The engine's settings: one frozen value, checked once when it is made, passed to everyone who needs it.

Settings with None are resolved at start, from the model or the machine; what was resolved is printed then.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "bfloat16", "float16", "float32")
CPU_KERNELS = ("auto", "off")
ATTENTIONS = ("auto", "kernel", "flashinfer", "sdpa")
WARMUPS = ("none", "fast", "full")


class ConfigError(ValueError):
    """A setting is out of range; the message names the field, the limit and the value."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine runs; raises `ConfigError` for a value that cannot work.

    model: a GGUF file, a Hugging Face directory or a hub name. tokenizer: another place to take the tokenizer from.
    device, dtype: "auto" takes CUDA where there is a GPU, and bfloat16 where the hardware has it natively.
    max_model_len: tokens a sequence may hold; None takes what the model was trained for.
    max_num_seqs: sequences that run at the same time.
    max_num_batched_tokens: tokens one step may compute, decodes and prefill chunks together.
    max_prefill_chunk_tokens: the part of them that prefill may take while others decode, so that a running decode
    waits for one chunk at most; None means the whole budget.
    block_size: tokens a KV block. kv_cache_mib: memory of the KV cache; None derives it from `gpu_memory_utilization`
    on CUDA and from the free memory on the CPU.
    enable_prefix_caching: keep the KV of finished sequences and reuse it for prompts with the same beginning.
    reserved_tokens: how many tokens each running sequence may grow before it could lack blocks because others came in:
    what is admitted too early is preempted and has to be computed again.
    stop_preempted_request: end a sequence with an error when the blocks run out, instead of computing it again later.
    attention: who computes attention on a GPU; "auto" takes flashinfer where it is installed, else the kernel of this
    program, else torch.
    enforce_eager: no CUDA graphs. num_threads: threads of the forward pass on the CPU; None takes all cores.
    pin_threads: keep these threads, the calling one included, each on a core of its own; for the CPU kernels alone.
    cpu_kernels: "auto" computes on the compiled CPU kernels where model and dtype allow; "off" leaves it to torch.
    warmup: what is computed before the first request: "none", "fast" (a prefill and a decode) or "full" (every size).
    seed: makes the draws of requests without a seed of their own repeatable; None draws fresh ones.
    """

    model: str = ""
    tokenizer: str | None = None
    revision: str | None = None
    tokenizer_revision: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_prefill_chunk_tokens: int | None = 512
    block_size: int = 16
    kv_cache_mib: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    reserved_tokens: int = 64
    stop_preempted_request: bool = False
    attention: str = "auto"
    enforce_eager: bool = False
    num_threads: int | None = None
    pin_threads: bool = False
    cpu_kernels: str = "auto"
    warmup: str = "fast"
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "reserved_tokens"):
            _require_positive(name, getattr(self, name))
        for name in ("max_model_len", "max_prefill_chunk_tokens", "kv_cache_mib", "num_threads"):
            if getattr(self, name) is not None:
                _require_positive(name, getattr(self, name))
        _require_choice("device", self.device, DEVICES)
        _require_choice("dtype", self.dtype, DTYPES)
        _require_choice("cpu_kernels", self.cpu_kernels, CPU_KERNELS)
        _require_choice("attention", self.attention, ATTENTIONS)
        _require_choice("warmup", self.warmup, WARMUPS)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(f"gpu_memory_utilization must be in (0, 1]. Given: {self.gpu_memory_utilization!r}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens must be >= max_num_seqs ({self.max_num_seqs}), so that every running sequence"
                f" can decode in each step. Given: {self.max_num_batched_tokens}"
            )
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be in [0, 2^63). Given: {self.seed!r}")

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """The settings' names, for those who build options from them."""
        return tuple(field.name for field in fields(cls))


def _require_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be an integer >= 1. Given: {value!r}")


def _require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}. Given: {value!r}")
