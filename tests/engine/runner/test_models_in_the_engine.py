"""Every kind of attention and MLP under the scheduler: chunks, prefix hits and preemptions change no greedy token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine.backend import EngineRequest
from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.sampling_params import SamplingParams
from engine.core.sequence import Sequence
from engine.runner.kernels.cpu_llama import CompiledLlama
from engine.runner.models.decoder import Decoder
from engine.runner.weights.model_files import open_model
from tests.engine.runner.driving import Driver, load, make_sequence
from tests.engine.runner.kernels.building import require_compiler
from tests.engine.runner.small_models import make_reference, save_directory
from tests.engine.runner.test_models_against_transformers import VARIANTS, expected, tokens

NUM_BLOCKS, NUM_REQUESTS, NUM_TOKENS = 12, 8, 40
NEAR_TIE = 1e-3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def reference_of(variant: str) -> PreTrainedModel:
    return make_reference(kind=variant.partition(":")[0], **VARIANTS[variant])


@torch.no_grad()
def check_greedy(reference: PreTrainedModel, sequence: Sequence) -> None:
    """Each completion token is the reference's best behind the same tokens, until a near-tie."""
    logits = reference(torch.tensor([sequence.token_ids])).logits[0, sequence.num_prompt_tokens - 1 : -1]
    best = logits.topk(2)
    for token, ids, values in zip(sequence.completion_token_ids, best.indices, best.values, strict=True):
        if values[0] - values[1] < NEAR_TIE:
            return
        assert token == int(ids[0])


@pytest.mark.parametrize("variant", ["llama: grouped heads", "mistral: a window", "qwen3_moe", "deepseek_v3"])
def test_preemptions_and_prefix_hits_change_no_token(tmp_path: Path, variant: str) -> None:
    reference = reference_of(variant)
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=48, max_prefill_chunk_tokens=24, reserved_tokens=1)
    runner = load(open_model(str(save_directory(reference, tmp_path))), kv_cache_mib=4)
    runner.num_blocks = NUM_BLOCKS  # fewer than the requests need together
    core = EngineCore(runner, config)
    common, params = tokens(32, 1), SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    prompts = [common + tokens(3 + 5 * index, index) for index in range(NUM_REQUESTS)]
    sequences = [core.add_request(EngineRequest(str(i), prompt, params)) for i, prompt in enumerate(prompts)]
    while core.has_work:
        core.step()
    assert core.stats().preemptions > 0
    assert core.stats().cached_prompt_tokens > 0
    for sequence in sequences:
        assert sequence.num_completion_tokens == NUM_TOKENS
        check_greedy(reference, sequence)


@pytest.mark.parametrize(
    ("variant", "compiled"),
    [
        ("llama: biases", True),
        ("mistral: no window", True),
        ("qwen2: yarn", True),
        ("qwen3", True),
        ("phi3", True),
        ("mistral: a window", False),
        ("qwen3_moe", False),
        ("deepseek_v3", False),
    ],
)
def test_the_cpu_kernels_take_what_they_can_compute(tmp_path: Path, variant: str, compiled: bool) -> None:
    require_compiler()
    reference = reference_of(variant)
    files = open_model(str(save_directory(reference, tmp_path)))
    runner = load(files, kv_cache_mib=8, dtype="bfloat16", cpu_kernels="auto")
    assert type(runner._model) is (CompiledLlama if compiled else Decoder)
    driver = Driver(runner)
    sequence, other = (driver.add(make_sequence(tokens(length, length))) for length in (60, 9))
    for _ in range(4):
        logits = driver.logits(*((each, each.num_uncomputed_tokens) for each in (sequence, other)))
        wanted = torch.stack([expected(reference, each.token_ids) for each in (sequence, other)])
        assert float((logits - wanted).norm(dim=-1).div(wanted.norm(dim=-1)).max()) < 0.2
        sequence.token_ids.append(9)
        other.token_ids.append(11)
