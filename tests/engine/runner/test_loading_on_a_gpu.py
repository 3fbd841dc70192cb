"""A model loaded and run as on a GPU, from the first plan to the last token, on a GPU that is the CPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from engine.backend import EngineRequest
from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.sampling_params import SamplingParams
from engine.runner import attention_choice, memory_profile
from engine.runner.kernels import cuda_path
from engine.runner.model_runner import ModelRunner
from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.model_files import ModelFiles, open_model
from tests.engine.runner import fake_flashinfer
from tests.engine.runner.fake_machine import SETTINGS, Gpu
from tests.engine.runner.small_models import make_reference, save_directory
from tests.engine.runner.test_gpu_path import check_greedy
from tests.engine.runner.test_graph_runner import FakeGraphs
from tests.engine.runner.test_memory_profile import MIB

DESCRIBED = {"kernel": "by the kernel", "flashinfer": "flashinfer 0.7.4", "sdpa": f"torch {torch.__version__}"}


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    return make_reference(hidden_size=128, head_dim=64, num_attention_heads=4, num_key_value_heads=2)


@pytest.fixture
def files(reference: PreTrainedModel, tmp_path: Path) -> ModelFiles:
    return open_model(str(save_directory(reference, tmp_path)))


def run(runner: ModelRunner) -> list[Any]:
    core = EngineCore(runner, EngineConfig(**SETTINGS))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompts = [[5 + index, *range(40, 43 + 9 * index)] for index in range(4)]
    sequences = [core.add_request(EngineRequest(str(i), prompt, params)) for i, prompt in enumerate(prompts)]
    while core.has_work:
        core.step()
    return sequences


@pytest.mark.parametrize("attention", ["kernel", "flashinfer", "sdpa"])
def test_each_way_to_attend_gives_the_tokens_of_the_reference(
    gpu: Gpu, files: ModelFiles, reference: PreTrainedModel, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    runner = gpu.load(files, attention=attention)
    assert runner.runs_ahead
    assert DESCRIBED[attention] in runner.description  # for the fingerprint: results differ by rounding
    assert runner.replays_graphs is runner.replays_draws is (attention != "sdpa")
    sequences = run(runner)
    assert (gpu.graphs.num_replays > 0) is (attention != "sdpa")
    for sequence in sequences:
        check_greedy(reference, sequence)


def test_each_phase_is_told_and_the_cache_gets_what_was_measured(gpu: Gpu, files: ModelFiles) -> None:
    runner = gpu.load(files)
    assert [line.split(":")[0] for line in gpu.lines] == [
        "weights",
        "GPU kernels",
        "attention",
        "memory",
        "CUDA graphs",
        "warm-up",
    ]
    assert "float16 on Fake GPU" in gpu.lines[0]
    bytes_a_block = 8 * 3 * 2 * 64 * 2 * 2  # tokens, layers, KV heads, numbers, bytes, keys and values
    left = (20_000 * 4 // 100 - 700 - 4) * MIB - memory_profile.graph_bytes(EngineConfig(**SETTINGS), 160)
    assert runner.num_blocks == left // bytes_a_block


def test_eager_means_no_graphs(gpu: Gpu, files: ModelFiles) -> None:
    runner = gpu.load(files, enforce_eager=True)
    assert not runner.replays_graphs and not gpu.saying("CUDA graphs")
    assert gpu.graphs.num_captured == 0
    run(runner)


def test_weights_that_do_not_fit_are_refused_before_they_are_loaded(gpu: Gpu, files: ModelFiles) -> None:
    gpu.memory.others = 20_000 * MIB - 4 * MIB
    with pytest.raises(ModelLoadError, match="the model does not fit"):
        gpu.load(files)
    assert not gpu.saying("weights")


LATENT = {"head_dim": 16, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 16, "v_head_dim": 10}
ROUTED = {"moe_intermediate_size": 24, "n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 1}
SPARSE: dict[str, dict[str, Any]] = {
    "deepseek_v2": {**LATENT, **ROUTED, "q_lora_rank": None, "num_key_value_heads": 6},
    "deepseek_v3": {**LATENT, **ROUTED, "q_lora_rank": 24, "num_key_value_heads": 6, "n_group": 2, "topk_group": 1},
    "qwen3_moe": {"head_dim": 64, "num_experts": 6, "moe_intermediate_size": 24},
}


class StrictGraphs(FakeGraphs):
    """Refuses to record what waits for a device, as a GPU does: whatever has the host look at what was computed."""

    class Watching(TorchDispatchMode):
        WAITING = ("_local_scalar_dense", "bincount", "nonzero", "masked_select", "_unique2", "unique_consecutive")

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function.overloadpacket.__name__ in self.WAITING:
                raise RuntimeError(f"{function} waits for the device")
            return function(*args, **(kwargs or {}))

    def capture(self, compute: Any) -> Any:
        with self.Watching():
            return super().capture(compute)


@pytest.mark.parametrize("kind", SPARSE)
def test_compressed_attention_and_experts_are_recorded_and_give_the_tokens_of_the_reference(
    gpu: Gpu, kind: str, tmp_path: Path
) -> None:
    all_chosen = make_reference(kind=kind, **SPARSE[kind] | {"num_experts_per_tok": 6, "n_group": 1, "topk_group": 1})
    gpu.graphs = StrictGraphs()
    runner = gpu.load(open_model(str(save_directory(all_chosen, tmp_path))))
    assert gpu.saying("CUDA graphs")[0].startswith("CUDA graphs: forward and sampling of 1, 2, 4 sequences, ")
    assert gpu.saying("experts") == ["experts: by the kernel for up to 4 tokens a step, else by torch"]
    assert ("latent vectors" in runner.description) is kind.startswith("deepseek")
    for sequence in run(runner):  # rounding does not decide which experts there are
        check_greedy(all_chosen, sequence)


@pytest.mark.parametrize("kind", SPARSE)
def test_a_few_experts_a_token_decode_the_same_with_graphs_as_without(gpu: Gpu, kind: str, tmp_path: Path) -> None:
    reference = make_reference(kind=kind, **SPARSE[kind] | {"num_experts_per_tok": 2})
    files = open_model(str(save_directory(reference, tmp_path)))
    tokens = []
    for eager in (False, True):
        runner = gpu.load(files, enforce_eager=eager)
        assert runner.replays_graphs is not eager
        tokens.append([sequence.token_ids for sequence in run(runner)])
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("kind", SPARSE)
def test_without_the_kernels_such_models_are_launched(
    gpu: Gpu, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_path, "open_launcher", lambda device, say: None)
    reference = make_reference(kind=kind, **SPARSE[kind] | {"num_experts_per_tok": 2})
    runner = gpu.load(open_model(str(save_directory(reference, tmp_path))))
    assert gpu.saying("experts") == ["experts: by torch; the GPU kernels cannot be used here"]
    assert not runner.replays_graphs
    run(runner)


def test_without_a_kernel_that_draws_forward_passes_alone_are_recorded(
    gpu: Gpu, files: ModelFiles, reference: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    monkeypatch.setattr(cuda_path, "open_launcher", lambda device, say: None)
    runner = gpu.load(files)
    assert runner.replays_graphs and not runner.replays_draws
    assert gpu.saying("CUDA graphs")[0].startswith("CUDA graphs: forward of 1, 2, 4 sequences, ")
    for sequence in run(runner):
        check_greedy(reference, sequence)


def test_kernels_that_fail_leave_all_to_torch(
    gpu: Gpu, files: ModelFiles, reference: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_path, "open_launcher", lambda device, say: None)
    monkeypatch.setattr(attention_choice, "attends_alike", lambda *arguments: pytest.fail("nothing is to be tried"))
    runner = gpu.load(files)
    assert gpu.saying("attention") == ["attention: SDPA over gathered blocks; the GPU kernels cannot be used here"]
    for sequence in run(runner):
        check_greedy(reference, sequence)
