"""GGUF files written from the same weights give the logits of transformers, whatever GGUF calls and turns around."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import PreTrainedModel

from engine.runner.weights.model_files import open_model
from tests.engine.runner.driving import Driver, load, make_sequence
from tests.engine.runner.small_models import make_reference, save_gguf
from tests.engine.runner.test_models_against_transformers import LATENT_YARN, VARIANTS, tokens

WRITTEN = [
    "llama: grouped heads",
    "llama: biases",
    "llama: llama3 rope",
    "qwen2",
    "qwen2: yarn",
    "qwen3",
    "qwen3_moe",
    "deepseek_v2: lite",
    "deepseek_v2: groups",
    "deepseek_v3",
]
GGUF_CHANGES: dict[str, dict[str, Any]] = {  # files hold one number for both settings of yarn's sharpening
    "deepseek_v3": {"rope_parameters": LATENT_YARN},
}


def check_logits(reference: PreTrainedModel, path: Path, tolerance: float = 1e-4) -> None:
    """Over a prefill and a decode."""
    driver = Driver(load(open_model(str(path)), kv_cache_mib=8))
    sequence = driver.add(make_sequence(tokens(50, 1)))
    for _ in range(2):
        with torch.no_grad():
            wanted = reference(torch.tensor([sequence.token_ids])).logits[0, -1]
        logits = driver.logits((sequence, sequence.num_uncomputed_tokens))[0]
        assert float((logits - wanted).abs().max()) < tolerance
        sequence.token_ids.append(9)


def reference_of(variant: str, **changes: Any) -> PreTrainedModel:
    return make_reference(kind=variant.partition(":")[0], **{**VARIANTS[variant], **changes})


@pytest.mark.parametrize("variant", WRITTEN)
def test_a_gguf_file_gives_the_logits_of_transformers(tmp_path: Path, variant: str) -> None:
    changes = GGUF_CHANGES.get(variant, {})
    check_logits(reference := reference_of(variant, **changes), save_gguf(reference, tmp_path / "model.gguf"))


@pytest.mark.parametrize("variant", ["deepseek_v2: lite", "deepseek_v3"])
def test_older_files_keep_keys_and_values_of_compressed_attention_together(tmp_path: Path, variant: str) -> None:
    reference = reference_of(variant, **GGUF_CHANGES.get(variant, {}))
    check_logits(reference, save_gguf(reference, tmp_path / "model.gguf", split_latent=False))


@pytest.mark.parametrize("variant", ["qwen3_moe", "deepseek_v3"])
def test_quantised_experts_are_dequantised_as_the_package_does(tmp_path: Path, variant: str) -> None:
    sizes = {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 96, "num_attention_heads": 8}
    latent = {"num_key_value_heads": 8, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
    more = latent if variant == "deepseek_v3" else {"head_dim": 16}
    reference = reference_of(variant, **{**GGUF_CHANGES.get(variant, {}), **sizes, **more})
    path = save_gguf(reference, tmp_path / "model.gguf", "Q8_0", split_latent=False)
    kind = gguf.GGMLQuantizationType.Q8_0
    with torch.no_grad():
        for weight in reference.parameters():
            if weight.dim() >= 2:
                restored = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind)
                weight.copy_(torch.from_numpy(restored.reshape(weight.shape)))
    check_logits(reference, path, tolerance=2e-3)
