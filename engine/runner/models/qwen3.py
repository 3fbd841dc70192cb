"""Qwen3: a norm over each head of the queries and keys in place of Qwen2's biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.runner.models.architecture import DecoderArchitecture
from engine.runner.models.decoder_config import DecoderConfig
from engine.runner.models.qwen2 import upper_windows


def read(config: Mapping[str, Any]) -> DecoderConfig:
    """The numbers of a Qwen3; raises `ModelLoadError`."""
    bias = bool(config.get("attention_bias", False))
    return DecoderConfig.from_dict(config, upper_windows(config), head_norms=True, qkv_bias=bias, output_bias=bias)


QWEN3 = DecoderArchitecture(read)
