"""Warm-up: which batches each kind computes, within what the runner can hold."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from engine.config import ConfigError, EngineConfig
from engine.core.scheduler_output import SchedulerOutput
from engine.runner.warm_up import warm_up


@dataclass
class Recorder:
    """A runner that notes the batches it is given, after checking that they fit into its blocks."""

    block_size: int = 4
    num_blocks: int = 100
    max_model_len: int = 300
    sizes: list[tuple[int, int]] = field(default_factory=list)  # sequences, tokens

    def step(self, batch: SchedulerOutput) -> None:
        for item in batch.scheduled:
            assert item.start + item.num_tokens == item.sequence.num_tokens <= self.max_model_len
            assert len(item.sequence.block_table) * self.block_size >= item.sequence.num_tokens
            assert max(item.sequence.block_table) < self.num_blocks
        self.sizes.append((len(batch.scheduled), batch.num_batched_tokens))


def sizes(warmup: str, **limits: int) -> list[tuple[int, int]]:
    runner = Recorder(**limits)
    config = EngineConfig(warmup=warmup, max_num_seqs=6, max_num_batched_tokens=100)
    assert warm_up(runner, config) == len(runner.sizes)
    return runner.sizes


def test_none_computes_nothing_and_fast_a_prefill_and_a_decode() -> None:
    assert sizes("none") == []
    assert sizes("fast") == [(1, 32), (1, 1)]


def test_full_goes_through_the_sizes_up_to_what_a_step_may_hold() -> None:
    batches = sizes("full")[2:]
    assert [tokens for number, tokens in batches if number == 1] == [1, 2, 4, 8, 16, 32, 64, 100, 1]
    assert [number for number, tokens in batches if number == tokens] == [1, 1, 2, 4, 6]


def test_a_small_cache_or_context_bounds_every_batch() -> None:
    assert max(tokens for _, tokens in sizes("full", num_blocks=5)) == 19
    assert max(tokens for _, tokens in sizes("full", max_model_len=10)) == 9
    assert sizes("full", max_model_len=1) == []


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="warmup"):
        EngineConfig(warmup="slow")
