"""Llama 1 to 3.3 and models built like it, such as SmolLM2 and the DeepSeek R1 distills of Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.runner.models.architecture import DecoderArchitecture
from engine.runner.models.decoder_config import DecoderConfig


def read(config: Mapping[str, Any]) -> DecoderConfig:
    """The numbers of a Llama; raises `ModelLoadError`."""
    bias = bool(config.get("attention_bias", False))
    mlp_bias = bool(config.get("mlp_bias", False))
    return DecoderConfig.from_dict(config, qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias)


LLAMA = DecoderArchitecture(read)
