"""What a model really needs on a GPU: its largest steps are computed once, and the allocator says what they took.

total | elsewhere: the driver's, kernels, other programs | weights | largest step, graphs | KV cache: what is left

The steps are a prefill of a whole step's tokens behind the longest prefix, and the same beside decodes in all other
seats, with settings that need everything of sampling. All sequences share one block: what they read means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from engine.config import EngineConfig
from engine.core.runner import OutOfMemoryError
from engine.core.sampling_params import MAX_LOGPROBS, SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import Sequence
from engine.runner.device import available_memory
from engine.runner.graph_runner import bucket_sizes
from engine.runner.kv_shape import KVShape
from engine.runner.linear import packs
from engine.runner.memory_plan import MemoryPlan, activation_bytes, plan_memory
from engine.runner.models.registry import architecture_of
from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.model_files import ModelFiles

_GREEDIEST = SamplingParams(top_k=50, top_p=0.95, min_p=0.01, repetition_penalty=1.1, logprobs=MAX_LOGPROBS)
_BYTES_A_GRAPH = 24 * 2**20  # of the driver and of attention, for the two graphs of each bucket


class DeviceMemory(Protocol):
    """The memory of a device and what torch's allocator has of it, in bytes."""

    def free_and_total(self) -> tuple[int, int]: ...

    def allocated(self) -> int:
        """What tensors hold now."""
        ...

    def reserved(self) -> int:
        """What the allocator has from the device: at least what tensors hold."""
        ...

    def peak(self) -> int:
        """The most that tensors held since `reset_peak`."""
        ...

    def reset_peak(self) -> None: ...

    def release(self) -> None:
        """Give back to the device what no tensor holds."""
        ...


class CudaMemory:
    """That of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free_and_total(self) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info(self._device)
        return int(free), int(total)

    def allocated(self) -> int:
        return int(torch.cuda.memory_allocated(self._device))

    def reserved(self) -> int:
        return int(torch.cuda.memory_reserved(self._device))

    def peak(self) -> int:
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device))

    def reset_peak(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)

    def release(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """In bytes: `available` is all but what is not ours; `step` is what the largest step takes beside the weights."""

    total: int
    available: int
    weights: int
    step: int


class Profiled(Protocol):
    """A runner with a cache of one block; `step` computes a batch to its end, with a mask on every row."""

    vocab_size: int
    block_size: int

    def step(self, batch: SchedulerOutput, bitmask: Any | None = None) -> None: ...


def measure_memory(
    runner: Profiled, config: EngineConfig, memory: DeviceMemory, context: int, seats: int
) -> MeasuredMemory:
    """Compute the largest steps of `runner` and see what they take.

    `context` is the longest a sequence gets, `seats` how many of these the cache is expected to hold; longer prefixes
    of many at once are left to luck, and to preemption. Raises `ModelLoadError` when a step does not fit.
    """
    memory.release()
    memory.reset_peak()
    before = memory.allocated()
    for batch in largest_steps(config, runner.block_size, context, seats):
        rows = len(batch.sampling)
        try:
            runner.step(batch, np.full((rows, -(-runner.vocab_size // 32)), 0x55555555, np.int32))
        except OutOfMemoryError as problem:
            raise ModelLoadError(
                f"a step of {batch.num_batched_tokens} tokens does not fit beside the weights ({problem}): lower "
                f"--max-num-batched-tokens, --max-num-seqs or --max-model-len"
            ) from problem
    step = memory.peak() - before
    memory.release()
    free, total = memory.free_and_total()
    return MeasuredMemory(total, free + memory.reserved(), memory.reserved(), step)


def first_plan(files: ModelFiles, config: EngineConfig, device: torch.device, dtype: torch.dtype) -> MemoryPlan:
    """The plan before anything is loaded; a GPU's leaves nothing for steps yet.

    Raises `ModelLoadError` when something does not fit.
    """
    sizes = architecture_of(files.config).sizes(files.config, dtype)
    available = available_memory(device)
    context = sizes.context_size * min(config.max_model_len or files.max_model_len, files.max_model_len)
    activations = activation_bytes(
        config, sizes.hidden_size, sizes.intermediate_size, sizes.vocab_size, dtype.itemsize, context
    )
    return plan_memory(
        config,
        sizes.kv_shape,
        device=device.type,
        weight_bytes=sizes.weight_bytes(dtype.itemsize, packed=packs(device, dtype)),
        activations=activations if device.type == "cpu" else 0,
        available=available,
        total=available if device.type == "cpu" else CudaMemory(device).free_and_total()[1],
        model_max_len=files.max_model_len,
    )


def measured_plan(
    runner: Profiled, config: EngineConfig, first: MemoryPlan, memory: DeviceMemory, shape: KVShape, *, records: bool
) -> MemoryPlan:
    """The plan once the weights are there, by what steps of `runner` take; `first` is the one made before.

    `records` says whether graphs will be recorded. Raises `ModelLoadError` when something does not fit.
    """
    seats = first.num_blocks * first.block_size // first.max_model_len
    measured = measure_memory(runner, config, memory, first.max_model_len, seats)
    return plan_memory(
        config,
        shape,
        device="cuda",
        weight_bytes=measured.weights,
        activations=measured.step + (graph_bytes(config, runner.vocab_size) if records else 0),
        available=measured.available,
        total=measured.total,
        model_max_len=first.max_model_len,
    )


def graph_bytes(config: EngineConfig, vocab_size: int) -> int:
    """About what graphs take: logits of every bucket, in two formats, two buffers of masks, a share of each graph."""
    buckets = bucket_sizes(config.max_num_seqs)
    masks = 2 * config.max_num_seqs * -(-vocab_size // 32) * 4
    return sum(buckets) * vocab_size * (4 + 2) + masks + len(buckets) * _BYTES_A_GRAPH


def largest_steps(config: EngineConfig, block_size: int, context: int, seats: int) -> list[SchedulerOutput]:
    """The batches that take most: a prefill alone, and one beside decodes in all seats but its own."""
    longest = max(1, context - 1)
    decoding = config.max_num_seqs - 1
    length = max(1, min(longest, longest * seats // max(1, decoding)))
    decodes = [_item(length, 1, block_size) for _ in range(decoding)]
    alone, beside = (
        _item(longest, max(1, min(longest, config.max_num_batched_tokens - number)), block_size)
        for number in (0, decoding)
    )
    return [SchedulerOutput([alone]), SchedulerOutput([*decodes, beside])]


def _item(length: int, number: int, block_size: int) -> ScheduledSequence:
    """The last `number` tokens of a sequence of `length`, whose blocks are all the first one."""
    sequence = Sequence("profile", [0] * length, length, _GREEDIEST, 0, frozenset(), length + 1, 0)
    sequence.block_table = [0] * -(-length // block_size)
    return ScheduledSequence(sequence, length - number, number, True)
