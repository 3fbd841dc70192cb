"""Attention by flashinfer, against SDPA over gathered blocks; a fake stands for the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import SchedulerOutput
from engine.runner import flashinfer_attention
from engine.runner.flashinfer_attention import FlashInferAttention, FlashInferPart, Planned, why_not
from engine.runner.forward_batch import BatchBuilder
from engine.runner.graph_runner import GraphRunner
from engine.runner.kv_cache import KVCache, KVShape
from engine.runner.memory_plan import MemoryPlan
from engine.runner.model_runner import ModelRunner
from engine.runner.models.registry import architecture_of
from engine.runner.token_feed import TokenFeed
from engine.runner.weights.model_files import open_model
from tests.engine.runner import fake_flashinfer
from tests.engine.runner.kernels.test_cuda_attention import items_of, random
from tests.engine.runner.small_models import make_reference, save_directory
from tests.engine.runner.test_gpu_path import NUM_TOKENS, check_greedy, run
from tests.engine.runner.test_graph_runner import FakeGraphs, decode

CPU, GPU, BLOCK_SIZE, NUM_BLOCKS = torch.device("cpu"), torch.device("cuda"), 16, 64


class CapturingGraphs(FakeGraphs):
    """Lets the library know when a graph is recorded, after the run that loads kernels."""

    def capture(self, compute: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        compute()
        fake_flashinfer.is_capturing = True
        try:
            return super().capture(compute)
        finally:
            fake_flashinfer.is_capturing = False


@pytest.fixture(autouse=True)
def small_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_attention, "_WORKSPACE_BYTES", 4096)


def attention(shape: KVShape, group: int, block_size: int = BLOCK_SIZE) -> FlashInferAttention:
    return FlashInferAttention(fake_flashinfer, shape, group, block_size, CPU)


@pytest.mark.parametrize(
    ("lengths", "new_tokens"),
    [
        ([1, 16, 17, 100], None),
        ([40], [40]),
        ([20, 33, 40, 50, 17], [1, 1, 40, 30, 16]),
        ([64, 5, 30], [2, 5, 29]),
    ],
)
@pytest.mark.parametrize("window", [None, 1, 9, 40])
@pytest.mark.parametrize("group", [1, 5])
def test_decodes_and_chunks_attend_as_over_gathered_blocks(
    lengths: list[int], new_tokens: list[int] | None, window: int | None, group: int
) -> None:
    shape, items = KVShape(1, 2, 64, torch.bfloat16), items_of(lengths, new_tokens)
    cache, exact = (
        KVCache(KVShape(1, 2, 64, dtype), NUM_BLOCKS, BLOCK_SIZE, CPU).layers[0]
        for dtype in (torch.bfloat16, torch.float32)
    )
    cache.keys.copy_(random(*cache.keys.shape, dtype=torch.bfloat16, seed=2))
    cache.values.copy_(random(*cache.values.shape, dtype=torch.bfloat16, seed=3))
    tokens = sum(item.num_tokens for item in items)
    qkv = random(tokens, (group + 2) * 2, 64, dtype=torch.bfloat16, seed=4)
    query, key, value = qkv.split([group * 2, 2, 2], dim=1)
    batch = SchedulerOutput(items)
    paged = attention(shape, group)
    ours = BatchBuilder(BLOCK_SIZE, group, torch.bfloat16, CPU, (window, 3), paged).build(batch)
    plain = BatchBuilder(BLOCK_SIZE, group, torch.float32, CPU, (window,)).build(batch)
    cache.write(ours.slots, key, value)
    exact.keys.copy_(cache.keys)
    exact.values.copy_(cache.values)
    out = ours.attend(query, key, value, cache, 0.125, window)
    expected = plain.attend(query.float(), key.float(), value.float(), exact, 0.125, window)
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.02)
    assert all(isinstance(part, FlashInferPart) for part in ours.parts[window])


@pytest.mark.parametrize(("group", "by_tensor_cores"), [(1, False), (3, False), (4, True), (7, True)])
def test_large_groups_use_tensor_cores(group: int, by_tensor_cores: bool) -> None:
    planned = attention(KVShape(1, 2, 128, torch.float16), group).planned_decodes()
    assert planned.wrapper.use_tensor_cores is by_tensor_cores


def test_another_scale_than_the_planned_one_is_refused() -> None:
    paged = attention(KVShape(1, 2, 64, torch.bfloat16), 1)
    part = paged.decodes(items_of([5]), None)
    cache = KVCache(KVShape(1, 2, 64, torch.bfloat16), NUM_BLOCKS, BLOCK_SIZE, CPU).layers[0]
    query = torch.zeros(1, 2, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"planned for a scale of 0.125, not 0.1"):
        part.attend(query, cache.keys, cache.values, 0.1)


def test_a_plan_waits_until_the_last_one_has_left_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Event:
        def record(self) -> None:
            log.append("record")

        def synchronize(self) -> None:
            log.append("wait")

    class Wrapper:
        def plan(self, *arguments: Any, **settings: Any) -> None:
            log.append("plan")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    planned = Planned(Wrapper(), GPU)
    planned.plan()
    planned.plan()
    assert log == ["plan", "record", "wait", "plan", "record"]


def test_shapes_that_the_library_is_not_used_for_are_named() -> None:
    bf16 = torch.bfloat16
    assert why_not(KVShape(1, 2, 128, bf16)) is None
    assert why_not(KVShape(1, 2, 96, bf16)) == "heads of 96"
    assert why_not(KVShape(1, 2, 64, torch.float32)) == "float32"
    assert why_not(KVShape(1, 1, 576, bf16, 512)) == "compressed attention"


@pytest.mark.parametrize("by_graphs", [True, False])
def test_a_model_in_the_engine_gives_the_tokens_of_the_reference(tmp_path: Path, by_graphs: bool) -> None:
    reference = make_reference(hidden_size=128, head_dim=64, num_attention_heads=4, num_key_value_heads=2)
    files = open_model(str(save_directory(reference, tmp_path)))
    model = architecture_of(files.config).load(
        files.config, files.open_tensors(), device=CPU, dtype=torch.float16, max_positions=64
    )
    paged, graphs = attention(model.kv_shape, model.group, 8), CapturingGraphs()
    runner = ModelRunner(model, MemoryPlan(0, 0, 1, 8, 8, 64), CPU, None, paged)
    if by_graphs:
        runner.capture(graphs, 4, lambda line: None)
        assert runner.replays_graphs
    runner.runs_ahead = True
    core = EngineCore(runner, EngineConfig(max_num_seqs=4, max_num_batched_tokens=32, reserved_tokens=1))
    sequences = run(core, SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True))
    assert core.stats().preemptions > 0
    assert (graphs.num_replays > NUM_TOKENS) is by_graphs
    for sequence in sequences:
        check_greedy(reference, sequence)


class Attending:
    """A model of one layer that gives what attention gives, over two windows."""

    vocab_size, group, windows, experts = 128, 2, (None, 6), ()
    kv_shape = KVShape(1, 1, 64, torch.bfloat16)

    def forward(self, batch: Any, cache: KVCache) -> torch.Tensor:
        query = batch.token_ids.view(-1, 1, 1).expand(-1, 2, 64).bfloat16() / 50
        outs = [batch.attend(query, query, query, cache.layers[0], 0.125, window) for window in self.windows]
        return torch.cat([out[:, :64] for out in outs], dim=1).float()


def test_graphs_read_the_blocks_of_the_step_for_every_bucket_and_window() -> None:
    """Sequences grow, leave, and come to other rows; rows of nobody see the spare block."""
    cache = KVCache(Attending.kv_shape, NUM_BLOCKS + 1, 4, CPU)
    cache.layers[0].keys.copy_(random(*cache.layers[0].keys.shape, dtype=torch.bfloat16, seed=1))
    cache.layers[0].values.copy_(random(*cache.layers[0].values.shape, dtype=torch.bfloat16, seed=2))
    paged = attention(Attending.kv_shape, 2, 4)
    model: Any = Attending()
    runner = GraphRunner(model, cache, paged, CapturingGraphs(), CPU, max_num_seqs=4, max_model_len=64, block_size=4)
    with torch.inference_mode():
        runner.capture()
        sequences = [item.sequence for item in items_of([3, 17, 30])]
        for sequence, first in zip(sequences, (0, 15, 30), strict=True):
            sequence.block_table = list(range(first, first + 12))
        for step in range(9):
            running = sequences[step % 3 :] if step % 2 else sequences
            plain = BatchBuilder(4, 2, torch.bfloat16, CPU, Attending.windows).build(decode(*running))
            torch.testing.assert_close(
                runner.forward(decode(*running), TokenFeed()), model.forward(plain, cache), rtol=0.03, atol=0.03
            )
            for sequence in running:
                sequence.token_ids.append(step)
