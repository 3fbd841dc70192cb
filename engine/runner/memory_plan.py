"""How much memory goes where, decided before anything large is allocated and said in plain words.

memory | weights | activations of the largest step | KV cache (the rest, or what was asked for)

On the CPU the plan is an estimate. On a GPU it is made twice: before the weights are loaded, to see whether they fit,
and again with what was measured since; see `memory_profile`.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import EngineConfig
from engine.runner.kv_shape import KVShape
from engine.runner.weights.errors import ModelLoadError

_MIB = 2**20
_CPU_KV_MIB = 384  # without --kv-cache-mib on the CPU: room for some 17,000 tokens of a small model
_LOGIT_COPIES = 4  # float32 copies of the logits that sampling may hold


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What the runner will allocate, in bytes, and the longest sequence the KV cache is sure to hold."""

    weight_bytes: int
    activation_bytes: int
    block_bytes: int
    num_blocks: int
    block_size: int
    max_model_len: int

    def __str__(self) -> str:
        tokens = self.num_blocks * self.block_size
        return (
            f"memory: weights {_mib(self.weight_bytes)}, activations up to {_mib(self.activation_bytes)}, KV cache "
            f"{_mib(self.num_blocks * self.block_bytes)} for {tokens:,} tokens ({self.num_blocks:,} blocks of "
            f"{self.block_size}), sequences up to {self.max_model_len:,} tokens"
        )


def activation_bytes(
    config: EngineConfig, hidden_size: int, intermediate_size: int, vocab_size: int, item: int, context: int = 0
) -> int:
    """An estimate of what the largest step needs beside weights and KV cache.

    `item` is bytes a number; `context` counts numbers that are made of the tokens before a chunk.
    """
    a_token = (8 * hidden_size + 3 * intermediate_size) * item
    logits = config.max_num_seqs * vocab_size * 4 * _LOGIT_COPIES
    return config.max_num_batched_tokens * a_token + logits + context * item


def plan_memory(
    config: EngineConfig,
    shape: KVShape,
    *,
    device: str,
    weight_bytes: int,
    activations: int,
    available: int,
    total: int,
    model_max_len: int,
) -> MemoryPlan:
    """The plan for "cpu" or "cuda": `available` bytes before the weights are loaded, `total` bytes of the device.

    Raises `ModelLoadError` when the weights do not fit, or when the KV cache cannot hold one sequence of the length
    asked for. Without `max_model_len` in the settings, the model's own is cut to what the KV cache holds.
    """
    reserve = int(total * (1 - config.gpu_memory_utilization)) if device == "cuda" else 0
    rest = available - reserve - weight_bytes - activations
    if rest <= 0:
        raise ModelLoadError(
            f"the model does not fit: its weights need {_mib(weight_bytes)} and a step {_mib(activations)}, but "
            f"{_mib(max(0, available - reserve))} of memory are available; use a smaller model or dtype"
        )
    block_bytes = shape.bytes_a_block(config.block_size)
    wanted_len = config.max_model_len or model_max_len
    if wanted_len > model_max_len:
        raise ModelLoadError(f"--max-model-len {wanted_len} exceeds the model's context of {model_max_len} tokens")
    kv_bytes = _kv_bytes(config, device, rest, -(-wanted_len // config.block_size) * block_bytes)
    num_blocks = kv_bytes // block_bytes
    return MemoryPlan(
        weight_bytes=weight_bytes,
        activation_bytes=activations,
        block_bytes=block_bytes,
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_model_len=_fitting_len(config, device, wanted_len, num_blocks, block_bytes),
    )


def _kv_bytes(config: EngineConfig, device: str, rest: int, one_sequence: int) -> int:
    """What the KV cache may take of the `rest`; on the CPU at least one whole sequence, if that fits."""
    if config.kv_cache_mib is not None:
        asked = config.kv_cache_mib * _MIB
        if asked > rest:
            raise ModelLoadError(
                f"--kv-cache-mib {config.kv_cache_mib} does not fit: {_mib(rest)} are left beside weights and step"
            )
        return asked
    return rest if device == "cuda" else min(rest, max(_CPU_KV_MIB * _MIB, one_sequence))


def _fitting_len(config: EngineConfig, device: str, wanted_len: int, num_blocks: int, block_bytes: int) -> int:
    fitting = num_blocks * config.block_size
    if wanted_len <= fitting:
        return wanted_len
    if config.max_model_len is None and fitting > 0:
        return fitting
    needed = -(-(-(-wanted_len // config.block_size) * block_bytes) // _MIB)
    measured = device == "cuda" and config.kv_cache_mib is None
    remedy = "a higher --gpu-memory-utilization" if measured else f"--kv-cache-mib {needed} or more"
    raise ModelLoadError(
        f"the KV cache holds {fitting:,} tokens, but a sequence may have {wanted_len:,}: give {remedy}, "
        f"or a lower --max-model-len"
    )


def _mib(size: int) -> str:
    return f"{size / _MIB:,.0f} MiB"
