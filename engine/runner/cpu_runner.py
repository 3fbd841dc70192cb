"""The runner of the CPU kernels: model, KV cache and sampler without torch, whose import takes longer than all else.

load     memory plan, weights packed, KV pages, warm-up
launch   scheduled sequences -> one call of the library -> logits
sample   logits, settings, bitmask -> tokens, by the same library
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from engine.config import EngineConfig
from engine.core.runner import SampledToken
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.runner.host_memory import host_memory, keep_freed_memory
from engine.runner.kernels.cpu_llama import CompiledLlama
from engine.runner.kernels.cpu_path import open_compiled
from engine.runner.kernels.cpu_sampler import CpuSampler
from engine.runner.kv_pages import KVPages
from engine.runner.memory_plan import MemoryPlan, activation_bytes, plan_memory
from engine.runner.models.registry import architecture_of
from engine.runner.warm_up import warm_up
from engine.runner.weights.model_files import ModelFiles


@dataclass(slots=True)
class Forward:
    """A forward pass that is done: `logits` float32 `[R, V]`, one row for each of `items`."""

    logits: np.ndarray[Any, Any]
    items: list[ScheduledSequence]


class CpuRunner:
    """Computes batches on the CPU kernels; implements `engine.core.runner.Runner`."""

    runs_ahead = False
    most_prompt_tokens: int | None = 128  # that many go through the layers together (SLICE_ROWS)

    def __init__(self, model: CompiledLlama, plan: MemoryPlan) -> None:
        self.block_size, self.num_blocks = plan.block_size, plan.num_blocks
        self.vocab_size, self.max_model_len = model.vocab_size, plan.max_model_len
        self.description = f"cpu, bfloat16, {model.instruction_set}"
        self._model: CompiledLlama | None = model
        self._sampler: CpuSampler | None = CpuSampler(model.vocab_size, model.sample)
        model.bind(KVPages(model.kv_shape, plan.num_blocks, plan.block_size), plan.block_size)

    @classmethod
    def load(cls, files: ModelFiles, config: EngineConfig, say: Callable[[str], None]) -> CpuRunner | None:
        """Load the model of `files` as `config` says; None where torch has to compute it.

        `say` is told of each phase in one line. Raises `ModelLoadError` when the weights are wrong or memory does not
        suffice, `ConfigError` when threads cannot be pinned.
        """
        model = open_compiled(files, config, say)
        if model is None:
            return None
        plan = _plan(files, config, model)
        say(str(plan))
        started = perf_counter()
        model.load()
        millions = architecture_of(files.config).sizes(files.config, model.kv_shape.dtype).num_parameters / 1e6
        place = f"the CPU, threads: {model.threads}" + (f" on CPUs {_listed(model.cpus)}" if model.cpus else "")
        say(f"weights: {millions:,.0f} M in {model.number_format} on {place}, {perf_counter() - started:.2f} s")
        started = perf_counter()
        keep_freed_memory()
        runner = cls(model, plan)
        number = warm_up(runner, config)
        say(f"warm-up: {number} steps, {perf_counter() - started:.2f} s")
        return runner

    def launch(self, batch: SchedulerOutput) -> Forward:
        """Compute the forward pass of `batch`."""
        if self._model is None:
            raise RuntimeError("the runner is closed")
        return Forward(self._model.forward(batch), batch.sampling)

    def sample(self, forward: Forward, bitmask: Any | None) -> list[SampledToken]:
        """Draw a token for each sampling row; `bitmask` as in the protocol. Uses up the logits."""
        if self._sampler is None:
            raise RuntimeError("the runner is closed")
        return self._sampler.sample(forward.logits, forward.items, bitmask)

    def read(self, pending: list[SampledToken]) -> list[SampledToken]:
        """The drawn tokens, in batch order."""
        return pending

    def close(self) -> None:
        """Release model and KV cache. Idempotent."""
        self._model = self._sampler = None

    def step(self, batch: SchedulerOutput) -> None:
        """Compute `batch` to its end; nobody wants its tokens."""
        self.sample(self.launch(batch), None)


def _plan(files: ModelFiles, config: EngineConfig, model: CompiledLlama) -> MemoryPlan:
    sizes = architecture_of(files.config).sizes(files.config, model.kv_shape.dtype)
    available = host_memory()
    return plan_memory(
        config,
        sizes.kv_shape,
        device="cpu",
        weight_bytes=model.weight_bytes,
        activations=activation_bytes(
            config, sizes.hidden_size, sizes.intermediate_size, sizes.vocab_size, model.kv_shape.dtype.itemsize
        ),
        available=available,
        total=available,
        model_max_len=files.max_model_len,
    )


def _listed(cpus: list[int]) -> str:
    return ", ".join(map(str, cpus))
