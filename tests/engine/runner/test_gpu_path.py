"""The whole way of a GPU, played on the CPU: kernels by the shim, graphs by a fake, steps launched ahead."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine.backend import EngineRequest
from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence
from engine.core.sequence import UNKNOWN_TOKEN
from engine.runner.kernels.cuda_attention import KernelAttention
from engine.runner.memory_plan import MemoryPlan
from engine.runner.model_runner import ModelRunner
from engine.runner.models.registry import architecture_of
from engine.runner.token_feed import TokenFeed
from engine.runner.weights.model_files import open_model
from tests.engine.runner.driving import make_sequence
from tests.engine.runner.fake_gpu import FakeGpu, ImmediateLane
from tests.engine.runner.kernels.shim import Shim, require_cpp_compiler
from tests.engine.runner.small_models import make_reference, save_directory
from tests.engine.runner.test_graph_runner import FakeGraphs

CPU, NUM_BLOCKS, NUM_TOKENS = torch.device("cpu"), 8, 16
NEAR_TIE = 0.1  # float16 against float32


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    return make_reference(hidden_size=128, head_dim=64, num_attention_heads=4, num_key_value_heads=2)


def make_runner(reference: PreTrainedModel, folder: Path, shim: Shim, lines: list[str]) -> ModelRunner:
    files = open_model(str(save_directory(reference, folder)))
    model = architecture_of(files.config).load(
        files.config, files.open_tensors(), device=CPU, dtype=torch.float16, max_positions=64
    )
    plan = MemoryPlan(0, 0, 1, NUM_BLOCKS, 8, 64)
    paged = KernelAttention(shim, model.kv_shape, model.group, CPU)
    return ModelRunner(model, plan, CPU, shim, paged, ImmediateLane(FakeGpu()))


def run(core: EngineCore, params: SamplingParams) -> list[Any]:
    prompts = [[5 + index, *range(40, 43 + 4 * index)] for index in range(5)]
    sequences = [core.add_request(EngineRequest(str(i), prompt, params)) for i, prompt in enumerate(prompts)]
    while core.has_work:
        core.step()
    core.check_integrity()
    return sequences


def test_greedy_tokens_are_the_reference_models(reference: PreTrainedModel, libraries: Path, tmp_path: Path) -> None:
    require_cpp_compiler()
    shim, graphs, lines = Shim(libraries, threads=128), FakeGraphs(), []
    runner = make_runner(reference, tmp_path, shim, lines)
    runner.capture(graphs, 4, lines.append)
    runner.runs_ahead = True
    core = EngineCore(runner, EngineConfig(max_num_seqs=4, max_num_batched_tokens=32, reserved_tokens=1))
    sequences = run(core, SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True))
    assert graphs.num_captured == 2 * 3  # forward and draw, of three buckets
    assert graphs.num_replays > 2 * NUM_TOKENS
    assert core.stats().preemptions > 0
    assert {kernel for kernel, _, _ in shim.launched} >= {"sample_rows", "attend_parts"}
    assert lines[0].startswith("CUDA graphs: forward and sampling of 1, 2, 4 sequences, ")
    for sequence in sequences:
        assert sequence.num_completion_tokens == NUM_TOKENS
        check_greedy(reference, sequence)


@torch.no_grad()
def check_greedy(reference: PreTrainedModel, sequence: Any) -> None:
    """Each completion token is the reference's best behind the same tokens, or nearly as good."""
    logits = reference(torch.tensor([sequence.token_ids])).logits[0, sequence.num_prompt_tokens - 1 : -1]
    for token, row in zip(sequence.completion_token_ids, logits, strict=True):
        assert row[token] > row.max() - NEAR_TIE


def test_a_model_whose_experts_are_counted_on_the_host_is_not_recorded(
    reference: PreTrainedModel, libraries: Path, tmp_path: Path
) -> None:
    require_cpp_compiler()
    lines: list[str] = []
    runner = make_runner(reference, tmp_path, Shim(libraries), lines)
    model: Any = runner._model
    model.experts = [SimpleNamespace(few_rows=None)]
    runner.capture(FakeGraphs(), 4, lines.append)
    assert not runner.replays_graphs
    assert lines[-1] == "CUDA graphs: none, as the host decides which experts compute"


def test_the_feed_writes_the_tokens_that_the_host_does_not_know_and_no_others() -> None:
    known, unknown, ended = (
        make_sequence([1, 2, 3]),
        make_sequence([4, UNKNOWN_TOKEN]),
        make_sequence([5, UNKNOWN_TOKEN]),
    )
    feed = TokenFeed()
    drawn = [ScheduledSequence(sequence, 0, 1, True) for sequence in (ended, known, unknown)]
    feed.keep(torch.tensor([-1, 70, 80]), drawn)
    items = [
        ScheduledSequence(unknown, 1, 1, True),
        ScheduledSequence(ended, 1, 1, True),
        ScheduledSequence(known, 0, 3, True),
    ]
    token_ids = torch.tensor([-1, -1, 1, 2, 3])
    feed.fill(token_ids, items)
    assert token_ids.tolist() == [80, 0, 1, 2, 3]


def test_a_recording_that_fails_leaves_decodes_to_be_launched_one_by_one(
    reference: PreTrainedModel, libraries: Path, tmp_path: Path
) -> None:
    require_cpp_compiler()

    class Failing(FakeGraphs):
        def capture(self, compute: Any) -> Any:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

    lines: list[str] = []
    runner = make_runner(reference, tmp_path, Shim(libraries), lines)
    runner.capture(Failing(), 4, lines.append)
    assert lines[-1] == "CUDA graphs: none, as recording fails: operation not permitted"
    assert not runner.replays_graphs
    core = EngineCore(runner, EngineConfig(max_num_seqs=4, max_num_batched_tokens=32))
    assert len(run(core, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))) == 5
