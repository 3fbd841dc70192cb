"""What the configurations of published models come to, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.runner.kv_cache import KVCache
from engine.runner.models.registry import ARCHITECTURES, architecture_of
from engine.runner.weights.gguf_config import ARCHITECTURES as GGUF_ARCHITECTURES
from engine.runner.weights.model_files import ModelLoadError, open_model
from tests.engine.runner.driving import Driver, load, make_sequence
from tests.engine.runner.small_models import make_reference, save_directory
from tests.engine.runner.test_models_against_transformers import VARIANTS, check, expected, tokens

QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
QWEN2_5_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "vocab_size": 102400,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
}
DEEPSEEK_V3 = {
    **DEEPSEEK_V2_LITE,
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
}


@pytest.mark.parametrize(
    ("config", "millions", "bytes_a_token"),
    [
        (QWEN2_5_7B, 7_615, 28 * 2 * 4 * 128 * 2),
        (QWEN3_30B_A3B, 30_532, 48 * 2 * 4 * 128 * 2),
        (DEEPSEEK_V2_LITE, 15_706, 27 * (512 + 64) * 2),
        (DEEPSEEK_V3, 671_026, 61 * (512 + 64) * 2),
    ],
    ids=lambda value: value["architectures"][0] if isinstance(value, dict) else str(value),
)
def test_published_models_have_their_published_size(config: dict[str, Any], millions: int, bytes_a_token: int) -> None:
    sizes = architecture_of(config).sizes(config, torch.bfloat16)
    assert sizes.num_parameters // 10**6 == millions
    assert sizes.kv_shape.bytes_a_block(16) == 16 * bytes_a_token


def test_a_compressed_cache_takes_the_latent_vector_and_the_turned_key_and_no_more() -> None:
    shape = architecture_of(DEEPSEEK_V2_LITE).sizes(DEEPSEEK_V2_LITE, torch.bfloat16).kv_shape
    cache = KVCache(shape, 3, 16, torch.device("cpu"))
    stored = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for layer in cache.layers
        for tensor in (layer.keys, layer.values)
    }
    assert sum(stored.values()) == 3 * 16 * 27 * (512 + 64) * 2


def test_every_gguf_architecture_is_one_of_those_that_are_computed() -> None:
    assert {name for name, _ in GGUF_ARCHITECTURES.values()} <= ARCHITECTURES.keys()


def test_layers_that_predict_further_tokens_may_be_there(tmp_path: Path) -> None:
    reference = make_reference(kind="deepseek_v3", **VARIANTS["deepseek_v3"])
    path = save_directory(reference, tmp_path) / "model.safetensors"
    weights = load_file(path)
    further = {name.replace("layers.1.", "layers.2."): w.clone() for name, w in weights.items() if "layers.1." in name}
    save_file({**weights, **further, "model.layers.2.eh_proj.weight": torch.ones(4, 4)}, path)
    driver = Driver(load(open_model(str(tmp_path)), kv_cache_mib=8))
    sequence = driver.add(make_sequence(tokens(20, 1)))
    check(driver.logits((sequence, 20)), expected(reference, sequence.token_ids))


@pytest.mark.parametrize("variant", ["qwen3_moe", "deepseek_v2: lite"])
def test_experts_may_be_stacked_in_one_tensor(tmp_path: Path, variant: str) -> None:
    reference = make_reference(kind=variant.partition(":")[0], **VARIANTS[variant])
    folder = save_directory(reference, tmp_path, save_original_format=False)
    assert any(name.endswith("experts.gate_up_proj") for name in load_file(folder / "model.safetensors"))
    driver = Driver(load(open_model(str(folder)), kv_cache_mib=8))
    sequence = driver.add(make_sequence(tokens(20, 1)))
    check(driver.logits((sequence, 20)), expected(reference, sequence.token_ids))


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (DEEPSEEK_V2_LITE, {"topk_method": "best"}, "topk_method 'best' is not supported, only greedy, group_limited_"),
        (DEEPSEEK_V2_LITE, {"attention_bias": True}, "attention_bias and mlp_bias are not supported for DeepSeek"),
        (DEEPSEEK_V2_LITE, {"kv_lora_rank": None}, "kv_lora_rank must be a positive integer"),
        (DEEPSEEK_V3, {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported, only 'sigmoid'"),
        (DEEPSEEK_V3, {"n_group": 7}, "8 of 256 experts cannot be chosen from 4 of 7 groups"),
        (DEEPSEEK_V3, {"quantization_config": {"quant_method": "fp8"}}, "quantised with 'fp8', which is not supported"),
        (QWEN2_5_7B, {"rope_parameters": {"partial_rotary_factor": 0.75}}, "partial_rotary_factor other than 1 is not"),
        (QWEN3_30B_A3B, {"num_experts_per_tok": 0}, "num_experts_per_tok must be a positive integer"),
        (QWEN2_5_7B, {"layer_types": ["linear_attention"] * 28, "use_sliding_window": True, "sliding_window": 9},
         "layer_types must name 28 layers of full or sliding attention"),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused_by_name(config: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        architecture_of(config).read({**config, **changes})
