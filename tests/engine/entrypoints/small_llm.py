"""The offline door over a small model with random weights, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import LlamaForCausalLM

from engine import LLM
from tests.engine.runner.small_models import save_directory

GREEDY = {"temperature": 0.0, "ignore_eos": True}
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "kv_cache_mib": 4, "num_threads": 1}
PROMPTS = [[5, 80, 33, 4, 90], [7], [9, 9, 31], [*range(3, 70)]]


def generate(llm: LLM, prompts: Any, params: Any = None) -> list[Any]:
    return llm.generate(prompts, params, use_tqdm=False)


def save_model(reference: LlamaForCausalLM, folder: Path) -> Path:
    """A model directory whose own settings for sampling are not the usual ones."""
    save_directory(reference, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "temperature": 0.5, "top_k": 7}))
    return folder
