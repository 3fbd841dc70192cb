"""Drives a model runner without a scheduler: sequences with blocks of their own, steps put together by hand."""

from __future__ import annotations

from collections.abc import Sequence as Items
from itertools import count
from typing import Any

import torch

from engine.config import EngineConfig
from engine.core.runner import SampledToken
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import Sequence
from engine.runner.cpu_runner import CpuRunner
from engine.runner.load import load_runner
from engine.runner.model_runner import ModelRunner
from engine.runner.weights.model_files import ModelFiles

GREEDY = SamplingParams(temperature=0)
_arrivals = count()


def make_sequence(
    token_ids: Items[int],
    params: SamplingParams = GREEDY,
    *,
    num_prompt_tokens: int | None = None,
    seed: int = 0,
    stop_ids: frozenset[int] = frozenset(),
) -> Sequence:
    """A sequence whose first `num_prompt_tokens` (all of them by default) are its prompt."""
    arrival = next(_arrivals)
    return Sequence(
        request_id=f"test-{arrival}",
        token_ids=list(token_ids),
        num_prompt_tokens=len(token_ids) if num_prompt_tokens is None else num_prompt_tokens,
        sampling_params=params,
        seed=seed,
        stop_ids=stop_ids,
        max_length=10**6,
        arrival=arrival,
    )


def sampling_row(sequence: Sequence) -> ScheduledSequence:
    """The row that draws the token behind all known ones."""
    return ScheduledSequence(sequence, len(sequence.token_ids) - 1, 1, True)


class Driver:
    """Steps of one runner. Blocks are handed out last to first, so that tables are never sorted."""

    def __init__(self, runner: ModelRunner | CpuRunner) -> None:
        self.runner = runner
        self._free = list(range(runner.num_blocks))

    def add(self, sequence: Sequence) -> Sequence:
        sequence.block_table = []
        sequence.num_computed_tokens = 0
        return sequence

    def release(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self._free += sequence.block_table
            sequence.block_table = []

    def logits(self, *chunks: tuple[Sequence, int]) -> torch.Tensor:
        """Compute the next n tokens of each sequence; logits of those that are then complete."""
        return torch.as_tensor(self._launch(chunks).logits).clone()  # those of the CPU library last one step

    def step(self, *chunks: tuple[Sequence, int]) -> list[SampledToken]:
        """As `logits`, but sampled, and the tokens appended."""
        forward = self._launch(chunks)
        sampled = self.runner.read(self.runner.sample(forward, None))
        for item, token in zip(forward.items, sampled, strict=True):
            if token.token_id is not None:
                item.sequence.token_ids.append(token.token_id)
        return sampled

    def _launch(self, chunks: Items[tuple[Sequence, int]]) -> Any:
        scheduled = []
        for sequence, num_tokens in chunks:
            start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + num_tokens
            while len(sequence.block_table) * self.runner.block_size < end:
                sequence.block_table.append(self._free.pop())
            scheduled.append(ScheduledSequence(sequence, start, num_tokens, end == len(sequence.token_ids)))
            sequence.num_computed_tokens = end
        return self.runner.launch(SchedulerOutput(scheduled))


def load(files: ModelFiles, **settings: Any) -> Any:
    """A runner, by default on torch in float32 on the CPU, with a small KV cache; `settings` as in `EngineConfig`."""
    defaults: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "cpu_kernels": "off",
        "kv_cache_mib": 64,
        "num_threads": 1,
    }
    return load_runner(files, EngineConfig(**{**defaults, **settings}))
