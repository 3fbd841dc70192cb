"""Decodes by graphs, against a device that records by remembering what to compute: buckets, buffers, block tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import Sequence
from engine.runner.forward_batch import BatchBuilder, ForwardBatch
from engine.runner.graph_runner import GraphRunner, bucket_sizes
from engine.runner.kernels.cuda_attention import KernelAttention, PagedDecodePart
from engine.runner.kv_cache import KVCache, KVShape
from engine.runner.models.registry import architecture_of
from engine.runner.token_feed import TokenFeed
from engine.runner.weights.model_files import open_model
from tests.engine.runner.driving import make_sequence
from tests.engine.runner.kernels.shim import Shim, require_cpp_compiler
from tests.engine.runner.small_models import make_reference, save_directory

CPU, BLOCK_SIZE, NUM_BLOCKS, MAX_LEN = torch.device("cpu"), 4, 100, 40


class FakeGraphs:
    """Records a computation as itself; a replay computes it again into the memory of the first result."""

    def __init__(self) -> None:
        self.num_captured = 0
        self.num_replays = 0

    def capture(self, compute: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        self.num_captured += 1
        result = compute()

        def replay() -> None:
            self.num_replays += 1
            result.copy_(compute())

        return result, replay


class EchoModel:
    """Its "logits" are what each row was computed from: token, position, slot, begins, end, blocks."""

    vocab_size, group = 5 + MAX_LEN // BLOCK_SIZE, 1
    windows = (None, 6)
    experts = ()
    kv_shape = KVShape(1, 1, 64, torch.bfloat16)

    def __init__(self) -> None:
        self.batch_sizes: list[int] = []

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        self.batch_sizes.append(len(batch.token_ids))
        whole, windowed = batch.parts[None][0], batch.parts[6][0]
        assert isinstance(whole, PagedDecodePart)
        assert isinstance(windowed, PagedDecodePart)
        assert not whole.begins.any()
        numbers = (batch.token_ids, batch.positions, batch.slots, windowed.begins, whole.ends)
        return torch.cat((torch.stack(numbers, 1), whole.tables), dim=1).float()


class NoLauncher:
    """Launches nothing."""

    num_processors = 1

    def launch(self, *arguments: Any) -> None:
        raise AssertionError("nothing is to be launched")


def make_runner(model: Any, launcher: Any, graphs: FakeGraphs, max_num_seqs: int) -> GraphRunner:
    cache = KVCache(model.kv_shape, NUM_BLOCKS + 1, BLOCK_SIZE, CPU)
    runner = GraphRunner(
        model,
        cache,
        KernelAttention(launcher, model.kv_shape, model.group, CPU),
        graphs,
        CPU,
        max_num_seqs=max_num_seqs,
        max_model_len=MAX_LEN,
        block_size=BLOCK_SIZE,
    )
    runner.capture()
    return runner


def decode(*sequences: Sequence) -> SchedulerOutput:
    return SchedulerOutput([ScheduledSequence(s, s.num_tokens - 1, 1, True) for s in sequences])


def give_blocks(sequence: Sequence, free: list[int]) -> None:
    while len(sequence.block_table) * BLOCK_SIZE < sequence.num_tokens:
        sequence.block_table.append(free.pop())


@pytest.mark.parametrize(("most", "sizes"), [(1, [1]), (8, [1, 2, 4, 8]), (11, [1, 2, 4, 8, 11])])
def test_buckets_double_up_to_the_most_sequences(most: int, sizes: list[int]) -> None:
    assert bucket_sizes(most) == sizes


def test_each_bucket_is_recorded_once_and_the_least_that_fits_is_replayed() -> None:
    graphs, model = FakeGraphs(), EchoModel()
    runner, free = make_runner(model, NoLauncher(), graphs, 6), list(range(NUM_BLOCKS))
    assert model.batch_sizes == [6, 4, 2, 1]
    sequences = [make_sequence([7, 8]) for _ in range(6)]
    for sequence in sequences:
        give_blocks(sequence, free)
    for number in (1, 2, 3, 5):
        runner.forward(decode(*sequences[:number]), TokenFeed())
    assert (graphs.num_captured, graphs.num_replays) == (4, 4)
    assert model.batch_sizes[4:] == [1, 2, 4, 6]


def test_prefills_too_many_rows_and_rows_that_draw_nothing_are_not_accepted() -> None:
    runner = make_runner(EchoModel(), NoLauncher(), FakeGraphs(), 2)
    sequence = make_sequence([1, 2, 3])
    assert runner.accepts(decode(sequence))
    assert not runner.accepts(SchedulerOutput([]))
    assert not runner.accepts(decode(*[sequence] * 3))
    assert not runner.accepts(SchedulerOutput([ScheduledSequence(sequence, 1, 2, True)]))
    assert not runner.accepts(SchedulerOutput([ScheduledSequence(sequence, 1, 1, False)]))


@pytest.mark.parametrize("seed", range(6))
def test_every_row_sees_its_own_sequence_whatever_came_and_went(seed: int) -> None:
    """Sequences arrive, grow, lose their blocks, move to other rows and leave, in any order."""
    random, runner = Random(seed), make_runner(EchoModel(), NoLauncher(), FakeGraphs(), 7)
    free, running = list(range(NUM_BLOCKS)), [make_sequence([3])]
    for _ in range(300):
        if len(running) < 7 and random.random() < 0.3:
            running.insert(
                random.randint(0, len(running)), make_sequence([random.randint(0, 9)] * random.randint(1, 20))
            )
        for sequence in list(running):
            sequence.token_ids.append(random.randint(0, 99))
            if random.random() < 0.05:
                free[:0], sequence.block_table = sequence.block_table, []
                sequence.num_preemptions += 1
            if len(running) > 1 and (sequence.num_tokens > MAX_LEN or random.random() < 0.05):
                free[:0] = sequence.block_table
                running.remove(sequence)
        running = [s for s in running if s.num_tokens <= MAX_LEN] or [make_sequence([3])]
        for sequence in running:
            give_blocks(sequence, free)
        for row, sequence in zip(runner.forward(decode(*running), TokenFeed()).int().tolist(), running, strict=True):
            position, blocks = sequence.num_tokens - 1, sequence.block_table
            slot = blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            assert row[:5] == [sequence.token_ids[-1], position, slot, max(0, position - 5), position + 1]
            assert row[5 : 5 + len(blocks)] == blocks
        free = [block for block in range(NUM_BLOCKS) if not any(block in s.block_table for s in running)]


def test_rows_of_a_bucket_that_nobody_uses_touch_the_spare_block_alone() -> None:
    class Watching(EchoModel):
        def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
            self.seen = super().forward(batch, cache)
            return self.seen.clone()

    model = Watching()
    runner, free = make_runner(model, NoLauncher(), FakeGraphs(), 4), list(range(NUM_BLOCKS))
    sequences = [make_sequence([5] * 9) for _ in range(4)]
    for sequence in sequences:
        give_blocks(sequence, free)
    runner.forward(decode(*sequences), TokenFeed())
    runner.forward(decode(*sequences[:3]), TokenFeed())
    token, position, slot, _, end, first_block = model.seen[3, :6].int().tolist()
    assert (token, position, slot, end, first_block) == (0, 0, NUM_BLOCKS * BLOCK_SIZE, 1, NUM_BLOCKS)


def test_a_model_decodes_the_same_with_graphs_as_without(libraries: Path, tmp_path: Path) -> None:
    require_cpp_compiler()
    reference = make_reference(hidden_size=128, head_dim=64, num_attention_heads=4, num_key_value_heads=2)
    files = open_model(str(save_directory(reference, tmp_path)))
    dtype = torch.float16
    model = architecture_of(files.config).load(
        files.config, files.open_tensors(), device=CPU, dtype=dtype, max_positions=MAX_LEN
    )
    runner = make_runner(model, Shim(libraries), FakeGraphs(), 4)
    plain, cache = BatchBuilder(BLOCK_SIZE, model.group, dtype, CPU), runner._cache
    sequences, free = [make_sequence(range(3, 3 + length)) for length in (3, 9, 5)], list(range(NUM_BLOCKS))
    with torch.inference_mode():
        for sequence in sequences:
            give_blocks(sequence, free)
            whole = ScheduledSequence(sequence, 0, sequence.num_tokens, True)
            model.forward(plain.build(SchedulerOutput([whole])), cache)
        for step in range(4):
            for sequence in sequences:
                sequence.token_ids.append(20 + step)
                give_blocks(sequence, free)
            expected = model.forward(plain.build(decode(*sequences)), cache)
            torch.testing.assert_close(runner.forward(decode(*sequences), TokenFeed()), expected, rtol=0.02, atol=0.02)
