"""The memory plan: what it says, and what it refuses before anything is allocated."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.runner.kv_shape import KVShape
from engine.runner.memory_plan import MemoryPlan, activation_bytes, plan_memory
from engine.runner.weights.errors import ModelLoadError

MIB = 2**20
SHAPE = KVShape(num_layers=30, num_kv_heads=3, head_dim=64, dtype=torch.bfloat16)  # 23,040 bytes a token


def plan(device: str = "cpu", available_mib: int = 16_000, model_max_len: int = 8192, **settings: Any) -> MemoryPlan:
    return plan_memory(
        EngineConfig(**settings),
        SHAPE,
        device=device,
        weight_bytes=300 * MIB,
        activations=100 * MIB,
        available=available_mib * MIB,
        total=20_000 * MIB,
        model_max_len=model_max_len,
    )


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    assert SHAPE.bytes_a_block(16) == 16 * 23_040


def test_values_that_are_a_part_of_the_keys_take_no_memory() -> None:
    shape = KVShape(num_layers=27, num_kv_heads=1, head_dim=512 + 64, dtype=torch.bfloat16, values_in_keys=512)
    assert shape.bytes_a_block(16) == 16 * 27 * (512 + 64) * 2


def test_the_plan_says_in_words_what_goes_where() -> None:
    assert str(plan(kv_cache_mib=360)) == (
        "memory: weights 300 MiB, activations up to 100 MiB, KV cache 360 MiB for 16,384 tokens (1,024 blocks of 16), "
        "sequences up to 8,192 tokens"
    )


def test_the_cpu_default_is_modest_but_holds_one_whole_sequence() -> None:
    assert plan().num_blocks == 384 * MIB // SHAPE.bytes_a_block(16)
    assert plan(model_max_len=100_000).num_blocks == 100_000 // 16


def test_a_gpu_gives_the_cache_what_its_utilization_leaves() -> None:
    planned = plan("cuda", available_mib=19_000, gpu_memory_utilization=0.5)
    assert planned.num_blocks == (19_000 - 10_000 - 400) * MIB // SHAPE.bytes_a_block(16)


def test_the_models_own_length_is_cut_to_what_fits() -> None:
    assert plan(kv_cache_mib=36).max_model_len == 36 * MIB // SHAPE.bytes_a_block(16) * 16 == 1632


def test_a_length_asked_for_that_does_not_fit_is_refused_with_the_size_needed() -> None:
    with pytest.raises(ModelLoadError, match=r"holds 1,632 tokens, but .* 4,096: give --kv-cache-mib 90 or more"):
        plan(kv_cache_mib=36, max_model_len=4096)
    assert plan(kv_cache_mib=90, max_model_len=4096).max_model_len == 4096


def test_on_a_gpu_the_share_of_its_memory_is_what_can_be_raised() -> None:
    with pytest.raises(ModelLoadError, match=r"holds \d+ tokens, .* 8,192: give a higher --gpu-memory-utilization"):
        plan("cuda", available_mib=19_000, gpu_memory_utilization=0.071, max_model_len=8192)


def test_a_length_beyond_the_models_context_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"--max-model-len 9000 exceeds the model's context of 8192 tokens"):
        plan(max_model_len=9000)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"weights need 300 MiB and a step 100 MiB, but 350 MiB of memory"):
        plan(available_mib=350)


def test_a_cache_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"--kv-cache-mib 2000 does not fit: 1,600 MiB are left"):
        plan(available_mib=2000, kv_cache_mib=2000)


def test_activations_grow_with_the_step_and_the_sequences() -> None:
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152, "item": 2}
    small, large = EngineConfig(max_num_batched_tokens=512), EngineConfig(max_num_batched_tokens=4096)
    many = EngineConfig(max_num_batched_tokens=512, max_num_seqs=256)
    assert activation_bytes(small, **sizes) < activation_bytes(large, **sizes) < 10 * activation_bytes(small, **sizes)
    assert activation_bytes(small, **sizes) < activation_bytes(many, **sizes)


def test_activations_grow_with_what_is_made_of_the_context() -> None:
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152, "item": 2}
    grown = activation_bytes(EngineConfig(), **sizes, context=1000) - activation_bytes(EngineConfig(), **sizes)
    assert grown == 1000 * 2
