"""What a runner computes before the first request, so that no request waits for what is made once.

none    nothing
fast    a prefill and a decode: kernels are loaded, buffers and threads are there
full    also decodes of 1, 2, 4 … sequences and prefills of as many sizes, up to what one step may hold

The tokens and the KV they leave mean nothing: no block belongs to anybody yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import Sequence

_FAST_TOKENS = 32


class Warmable(Protocol):
    """What is warmed up. `step` computes a batch to its end."""

    block_size: int
    num_blocks: int
    max_model_len: int

    def step(self, batch: SchedulerOutput) -> None: ...


def warm_up(runner: Warmable, config: EngineConfig) -> int:
    """Compute the batches that `config.warmup` asks for; returns their number."""
    longest = min(runner.max_model_len - 1, runner.num_blocks * runner.block_size - 1)
    if config.warmup == "none" or longest < 1:
        return 0
    batches = [_prefill(runner, min(_FAST_TOKENS, longest)), _decode(runner, 1)]
    if config.warmup == "full":
        batches += [_prefill(runner, length) for length in _sizes(min(longest, config.max_num_batched_tokens))]
        batches += [_decode(runner, number) for number in _sizes(config.max_num_seqs)]
    for batch in batches:
        runner.step(batch)
    return len(batches)


def _sizes(most: int) -> Iterator[int]:
    """1, 2, 4 … and `most` itself."""
    size = 1
    while size < most:
        yield size
        size *= 2
    yield most


def _prefill(runner: Warmable, length: int) -> SchedulerOutput:
    return SchedulerOutput([ScheduledSequence(_sequence(runner, length), 0, length, True)])


def _decode(runner: Warmable, number: int) -> SchedulerOutput:
    """The second token of `number` sequences, which share their one block."""
    length = min(2, runner.block_size)
    return SchedulerOutput([ScheduledSequence(_sequence(runner, length), length - 1, 1, True) for _ in range(number)])


def _sequence(runner: Warmable, length: int) -> Sequence:
    sequence = Sequence("warm-up", [0] * length, length, SamplingParams(), 0, frozenset(), length + 1, 0)
    sequence.block_table = list(range(-(-length // runner.block_size)))
    return sequence
