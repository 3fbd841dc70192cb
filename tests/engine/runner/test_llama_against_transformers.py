"""Llama variants with random weights against transformers: prefill, chunks, decodes, and all of them in one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from engine.core.sequence import Sequence
from engine.runner.weights.model_files import open_model
from tests.engine.runner.driving import Driver, load, make_sequence
from tests.engine.runner.small_models import BASE, make_reference, save_directory

TOLERANCE = 1e-4
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "one KV head, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "as many KV heads as heads": {"num_key_value_heads": 6},
    "head_dim of its own": {"head_dim": 16},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "large theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
}


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, Driver]:
    """The reference, and a driver of our runner with its weights."""
    reference = make_reference(**VARIANTS[request.param])
    folder = save_directory(reference, tmp_path_factory.mktemp("model"))
    return reference, Driver(load(open_model(str(folder)), kv_cache_mib=8))


def tokens(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, BASE["vocab_size"], (length,), generator=generator).tolist()


@torch.no_grad()
def expected(reference: LlamaForCausalLM, token_ids: list[int]) -> torch.Tensor:
    return reference(torch.tensor([token_ids])).logits[0, -1]


def check(logits: torch.Tensor, *wanted: torch.Tensor) -> None:
    assert logits.shape == (len(wanted), BASE["vocab_size"])
    assert float((logits - torch.stack(wanted)).abs().max()) < TOLERANCE


def test_a_whole_prefill_and_then_decodes(pair: tuple[LlamaForCausalLM, Driver]) -> None:
    reference, driver = pair
    sequence = driver.add(make_sequence(tokens(37, 1)))
    check(driver.logits((sequence, 37)), expected(reference, sequence.token_ids))
    for token in tokens(12, 2):
        sequence.token_ids.append(token)
        check(driver.logits((sequence, 1)), expected(reference, sequence.token_ids))
    driver.release(sequence)


def test_a_prefill_in_chunks_gives_logits_at_its_end_only(pair: tuple[LlamaForCausalLM, Driver]) -> None:
    reference, driver = pair
    sequence = driver.add(make_sequence(tokens(100, 3)))
    for chunk in (16, 1, 30, 50):
        assert driver.logits((sequence, chunk)).shape == (0, BASE["vocab_size"])
    check(driver.logits((sequence, 3)), expected(reference, sequence.token_ids))
    driver.release(sequence)


def test_decodes_first_chunks_and_whole_prompts_in_one_batch(pair: tuple[LlamaForCausalLM, Driver]) -> None:
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


def test_sequences_may_share_the_blocks_of_a_common_beginning(pair: tuple[LlamaForCausalLM, Driver]) -> None:
    reference, driver = pair
    first = driver.add(make_sequence(tokens(40, 4)))
    driver.logits((first, 40))
    second = driver.add(make_sequence(first.token_ids[:32] + tokens(9, 5)))
    second.block_table, second.num_computed_tokens = first.block_table[:2], 32
    check(driver.logits((second, 9)), expected(reference, second.token_ids))
    second.block_table = second.block_table[2:]
    driver.release(first, second)


def test_what_lies_in_reused_blocks_does_not_matter(pair: tuple[LlamaForCausalLM, Driver]) -> None:
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


def test_bfloat16_stays_near_float32_in_every_kind_of_step(tmp_path: Path) -> None:
    reference = make_reference()
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
