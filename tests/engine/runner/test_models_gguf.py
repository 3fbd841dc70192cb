"""GGUF files written from the same weights give the logits of transformers, whatever GGUF calls and turns around."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine.runner.weights.model_files import open_model
from tests.engine.runner.driving import Driver, load, make_sequence
from tests.engine.runner.small_models import make_reference, save_gguf
from tests.engine.runner.test_models_against_transformers import VARIANTS, tokens

WRITTEN = [
    "llama: grouped heads",
    "llama: biases",
    "llama: llama3 rope",
    "qwen2",
    "qwen2: yarn",
    "qwen3",
    "qwen3_moe",
]


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
    reference = reference_of(variant)
    check_logits(reference, save_gguf(reference, tmp_path / "model.gguf"))
