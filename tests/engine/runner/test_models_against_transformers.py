"""Every architecture with random weights against transformers: prefill, chunks, decodes, all of them in one batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine.core.sequence import Sequence
from engine.runner.weights.model_files import open_model
from tests.engine.runner.driving import Driver, load, make_sequence
from tests.engine.runner.small_models import BASE, make_reference, save_directory

TOLERANCE = 1e-4
THETA = {"rope_theta": 10000.0}
LLAMA3 = {
    **THETA,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {**THETA, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama: grouped heads": {},
    "llama: one KV head, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama: as many KV heads as heads": {"num_key_value_heads": 6},
    "llama: head_dim of its own": {"head_dim": 16},
    "llama: linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **THETA}},
    "llama: llama3 rope": {"rope_parameters": LLAMA3},
    "llama: biases": {"attention_bias": True, "mlp_bias": True},
    "llama: large theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "mistral: a window": {"sliding_window": 21},
    "mistral: a window of two blocks": {"sliding_window": 32},
    "mistral: no window": {"sliding_window": None},
    "phi3": {"pad_token_id": 0},
    "phi3: a window": {"pad_token_id": 0, "sliding_window": 40},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2: windows in the upper layers": {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    "qwen2: yarn": {"rope_parameters": YARN},
    "qwen3": {"head_dim": 16},
    "qwen3: biases, yarn that sharpens nothing": {
        "attention_bias": True,
        "rope_parameters": {**YARN, "attention_factor": 1.0, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    },
}
EXPERTS = {"num_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "num_hidden_layers": 2}
VARIANTS |= {
    "qwen3_moe": {**EXPERTS, "norm_topk_prob": True},
    "qwen3_moe: some dense layers": {
        **EXPERTS,
        "num_hidden_layers": 4,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    },
}
LATENT = {
    "num_hidden_layers": 2,
    "num_key_value_heads": 6,
    "head_dim": 8,
    "kv_lora_rank": 20,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
}
GROUPS = {"n_group": 4, "topk_group": 2}
LATENT_YARN = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}
VARIANTS |= {
    "deepseek_v2: lite": {**LATENT, "q_lora_rank": None, "rope_parameters": LATENT_YARN},
    "deepseek_v2: groups": {**LATENT, **GROUPS, "topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0},
    "deepseek_v3": {**LATENT, **GROUPS, "n_shared_experts": 1, "rope_parameters": {**LATENT_YARN, "mscale": 1.0}},
    "deepseek_v3: no groups, halves turned": {**LATENT, "n_group": 1, "topk_group": 1, "rope_interleave": False},
}
ALL_CHOSEN = {  # rounding must not decide which experts there are
    "qwen3_moe": {"num_experts_per_tok": 10},
    "deepseek_v2: lite": {"num_experts_per_tok": 12},
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Driver]:
    """The reference, and a driver of our runner with its weights."""
    reference = make_reference(kind=request.param.partition(":")[0], **VARIANTS[request.param])
    folder = save_directory(reference, tmp_path_factory.mktemp("model"))
    return reference, Driver(load(open_model(str(folder)), kv_cache_mib=8))


def tokens(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, BASE["vocab_size"], (length,), generator=generator).tolist()


@torch.no_grad()
def expected(reference: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    return reference(torch.tensor([token_ids])).logits[0, -1]


def check(logits: torch.Tensor, *wanted: torch.Tensor) -> None:
    assert logits.shape == (len(wanted), BASE["vocab_size"])
    assert float((logits - torch.stack(wanted)).abs().max()) < TOLERANCE


def test_a_whole_prefill_and_then_decodes(pair: tuple[PreTrainedModel, Driver]) -> None:
    reference, driver = pair
    sequence = driver.add(make_sequence(tokens(37, 1)))
    check(driver.logits((sequence, 37)), expected(reference, sequence.token_ids))
    for token in tokens(12, 2):
        sequence.token_ids.append(token)
        check(driver.logits((sequence, 1)), expected(reference, sequence.token_ids))
    driver.release(sequence)


def test_a_prefill_in_chunks_gives_logits_at_its_end_only(pair: tuple[PreTrainedModel, Driver]) -> None:
    reference, driver = pair
    sequence = driver.add(make_sequence(tokens(100, 3)))
    for chunk in (16, 1, 30, 50):
        assert driver.logits((sequence, chunk)).shape == (0, BASE["vocab_size"])
    check(driver.logits((sequence, 3)), expected(reference, sequence.token_ids))
    driver.release(sequence)


def test_decodes_first_chunks_and_whole_prompts_in_one_batch(pair: tuple[PreTrainedModel, Driver]) -> None:
    reference, driver = pair
    decoding = [driver.add(make_sequence(tokens(length, length))) for length in (5, 120, 16, 33, 17)]
    for sequence in decoding:
        driver.logits((sequence, len(sequence.token_ids)))
        sequence.token_ids.append(7)
    continued, fresh, unfinished = (driver.add(make_sequence(tokens(length, length))) for length in (60, 21, 50))
    driver.logits((continued, 40))
    logits = driver.logits(*((sequence, 1) for sequence in decoding), (continued, 20), (unfinished, 8), (fresh, 21))
    check(logits, *(expected(reference, sequence.token_ids) for sequence in [*decoding, continued, fresh]))
    check(driver.logits((unfinished, 42)), expected(reference, unfinished.token_ids))
    driver.release(*decoding, continued, fresh, unfinished)


def test_sequences_may_share_the_blocks_of_a_common_beginning(pair: tuple[PreTrainedModel, Driver]) -> None:
    reference, driver = pair
    first = driver.add(make_sequence(tokens(40, 4)))
    driver.logits((first, 40))
    second = driver.add(make_sequence(first.token_ids[:32] + tokens(9, 5)))
    second.block_table, second.num_computed_tokens = first.block_table[:2], 32
    check(driver.logits((second, 9)), expected(reference, second.token_ids))
    second.block_table = second.block_table[2:]
    driver.release(first, second)


def test_what_lies_in_reused_blocks_does_not_matter(pair: tuple[PreTrainedModel, Driver]) -> None:
    reference, driver = pair
    for seed in range(3):
        pairs = [driver.add(make_sequence(tokens(length, seed + length))) for length in (90, 3)]
        for sequence in pairs:
            driver.logits((sequence, len(sequence.token_ids)))
            sequence.token_ids.append(9)
        check(
            driver.logits(*((sequence, 1) for sequence in pairs)),
            *(expected(reference, sequence.token_ids) for sequence in pairs),
        )
        driver.release(*pairs)


def test_a_preempted_sequence_is_computed_again(pair: tuple[PreTrainedModel, Driver]) -> None:
    reference, driver = pair
    sequence, other = (driver.add(make_sequence(tokens(length, 6))) for length in (45, 70))
    for token in tokens(4, 7):
        driver.logits((sequence, sequence.num_uncomputed_tokens))
        sequence.token_ids.append(token)
    driver.release(sequence)
    driver.logits((other, 70))  # takes the blocks that were given back
    driver.add(sequence)
    driver.logits((sequence, 20))
    check(driver.logits((sequence, 29)), expected(reference, sequence.token_ids))
    sequence.token_ids.append(8)
    check(driver.logits((sequence, 1)), expected(reference, sequence.token_ids))
    driver.release(sequence, other)


@pytest.mark.parametrize("variant", ["llama: grouped heads", "mistral: a window", "qwen3_moe", "deepseek_v2: lite"])
def test_bfloat16_stays_near_float32_in_every_kind_of_step(tmp_path: Path, variant: str) -> None:
    reference = make_reference(kind=variant.partition(":")[0], **{**VARIANTS[variant], **ALL_CHOSEN.get(variant, {})})
    driver = Driver(load(open_model(str(save_directory(reference, tmp_path))), dtype="bfloat16", kv_cache_mib=8))
    sequences = [driver.add(make_sequence(tokens(length, length))) for length in (200, 150, 30, 17, 3)]

    def compare(*chunks: tuple[Sequence, int]) -> None:
        complete = [sequence for sequence, num in chunks if sequence.num_computed_tokens + num == sequence.num_tokens]
        logits = driver.logits(*chunks)
        wanted = torch.stack([expected(reference, sequence.token_ids) for sequence in complete])
        assert float((logits - wanted).norm(dim=-1).div(wanted.norm(dim=-1)).max()) < 0.1

    compare(*((sequence, sequence.num_tokens) for sequence in sequences[1:]))
    driver.logits((sequences[0], 20))
    compare((sequences[0], 180))
    for batch in (sequences, sequences[:2], sequences[:1], sequences):
        for sequence in batch:
            sequence.token_ids.append(11)
        compare(*((sequence, 1) for sequence in batch))
