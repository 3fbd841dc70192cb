"""What the largest steps take, measured: which steps those are, and what is left for the KV cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.core.runner import OutOfMemoryError
from engine.core.scheduler_output import SchedulerOutput
from engine.runner.kv_cache import KVShape
from engine.runner.memory_plan import MemoryPlan
from engine.runner.memory_profile import graph_bytes, largest_steps, measure_memory, measured_plan
from engine.runner.model_runner import ModelRunner
from engine.runner.models.registry import architecture_of
from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.model_files import open_model
from tests.engine.runner.small_models import make_reference, save_directory

MIB = 2**20
SHAPE = KVShape(num_layers=30, num_kv_heads=3, head_dim=64, dtype=torch.bfloat16)  # 23,040 bytes a token
CONFIG = EngineConfig(max_num_seqs=8, max_num_batched_tokens=512, gpu_memory_utilization=0.5)
FIRST = MemoryPlan(300 * MIB, 0, SHAPE.bytes_a_block(16), 2048, 16, 4096)


@dataclass
class FakeMemory:
    """A GPU of 20,000 MiB, of which others hold 700; the weights are there, and something that was freed."""

    weights: int = 300 * MIB
    cached: int = 50 * MIB
    most: int = 0
    now: int = 0
    others: int = 700 * MIB

    def free_and_total(self) -> tuple[int, int]:
        return 20_000 * MIB - self.others - self.reserved(), 20_000 * MIB

    def allocated(self) -> int:
        return self.weights + self.now

    def reserved(self) -> int:
        return self.weights + self.cached

    def peak(self) -> int:
        return self.most

    def reset_peak(self) -> None:
        self.most = self.allocated()

    def release(self) -> None:
        self.cached = 0

    def take(self, size: int) -> None:
        """A step allocates so much, and gives it back to the allocator; kernels that it loads are nobody's."""
        self.most = max(self.most, self.allocated() + size)
        self.cached = max(self.cached, size)
        self.others += 10 * MIB


@dataclass
class FakeRunner:
    """A step takes 1 MiB for each token and 3 MiB for each row that samples."""

    memory: FakeMemory
    vocab_size: int = 1000
    block_size: int = 16
    limit: int = 10**9
    masks: list[Any] = field(default_factory=list)

    def step(self, batch: SchedulerOutput, bitmask: Any | None = None) -> None:
        if batch.num_batched_tokens > self.limit:
            raise OutOfMemoryError("tried to allocate 9 GiB")
        self.masks.append(bitmask)
        self.memory.take(batch.num_batched_tokens * MIB + 3 * MIB * len(batch.sampling))


def test_the_peak_of_the_largest_step_is_measured_and_what_it_leaves_cached_is_nobodys() -> None:
    memory = FakeMemory()
    measured = measure_memory(FakeRunner(memory), CONFIG, memory, 4096, 8)
    assert measured.step == (512 + 3 * 8) * MIB
    assert measured.weights == 300 * MIB
    assert measured.available == (20_000 - 700 - 2 * 10) * MIB  # kernels that were loaded on the way count as others'
    assert measured.total == 20_000 * MIB


def test_the_cache_gets_what_utilization_others_weights_and_the_step_leave() -> None:
    memory = FakeMemory()
    plan = measured_plan(FakeRunner(memory), CONFIG, FIRST, memory, SHAPE, records=False)
    left = (20_000 - 720 - 10_000 - 300 - 536) * MIB
    assert plan.num_blocks == left // SHAPE.bytes_a_block(16)
    assert (plan.activation_bytes, plan.max_model_len) == (536 * MIB, 4096)


def test_graphs_get_their_share_where_there_are_any() -> None:
    plans = [
        measured_plan(FakeRunner(memory := FakeMemory()), CONFIG, FIRST, memory, SHAPE, records=records)
        for records in (False, True)
    ]
    assert plans[1].activation_bytes - plans[0].activation_bytes == graph_bytes(CONFIG, 1000) > 4 * 24 * MIB


def test_a_step_that_does_not_fit_names_what_to_lower() -> None:
    memory = FakeMemory()
    with pytest.raises(ModelLoadError, match=r"a step of 512 tokens does not fit .*9 GiB.*: lower --max-num-batched"):
        measure_memory(FakeRunner(memory, limit=100), CONFIG, memory, 4096, 8)


def test_the_largest_steps_fill_the_budget_behind_the_longest_prefix_with_every_seat_taken() -> None:
    alone, beside = largest_steps(CONFIG, 16, 4096, 2)
    (chunk,) = alone.scheduled
    assert (chunk.start, chunk.num_tokens, chunk.samples) == (4095 - 512, 512, True)
    assert beside.num_batched_tokens == 512
    assert [item.num_tokens for item in beside.scheduled] == [1] * 7 + [505]
    assert sum(item.start + 1 for item in beside.scheduled[:7]) <= 2 * 4096
    assert all(item.samples for item in beside.scheduled)


@pytest.mark.parametrize(("max_num_seqs", "context"), [(1, 4096), (8, 2), (64, 100)])
def test_small_limits_still_give_steps_that_can_be_computed(max_num_seqs: int, context: int) -> None:
    config = EngineConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=64)
    for batch in largest_steps(config, 16, context, 1):
        assert all(item.start >= 0 < item.num_tokens for item in batch.scheduled)
        assert all(len(item.sequence.block_table) * 16 >= item.sequence.num_tokens for item in batch.scheduled)
        assert batch.num_batched_tokens <= 64


def test_a_real_runner_computes_them_on_one_block(tmp_path: Path) -> None:
    files = open_model(str(save_directory(make_reference(), tmp_path)))
    cpu = torch.device("cpu")
    model = architecture_of(files.config).load(
        files.config, files.open_tensors(), device=cpu, dtype=torch.float32, max_positions=256
    )
    runner = ModelRunner(model, MemoryPlan(0, 0, 1, 1, 16, 256), cpu)
    config = EngineConfig(max_num_seqs=5, max_num_batched_tokens=64)
    for batch in largest_steps(config, 16, 256, 2):
        rows = len(batch.sampling)
        mask = np.full((rows, 5), 0x55555555, np.int32)
        tokens = runner.read(runner.sample(runner.launch(batch), mask))
        assert all(token.token_id is not None and token.token_id % 2 == 0 for token in tokens)
        assert all(token.logprobs is not None and len(token.logprobs.top) == 20 for token in tokens)
    plan = measured_plan(runner, config, MemoryPlan(0, 0, 1, 100, 16, 256), FakeMemory(), model.kv_shape, records=True)
    assert plan.num_blocks > 100 and plan.max_model_len == 256
