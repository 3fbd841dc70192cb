"""Qwen2, Qwen2.5 and the DeepSeek R1 distills of it: biases on Q, K and V, and windows in the upper layers if asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.runner.models.architecture import DecoderArchitecture
from engine.runner.models.decoder_config import DecoderConfig, Window, layer_windows, positive


def read(config: Mapping[str, Any]) -> DecoderConfig:
    """The numbers of a Qwen2; raises `ModelLoadError`."""
    return DecoderConfig.from_dict(config, upper_windows(config), qkv_bias=True)


def upper_windows(config: Mapping[str, Any]) -> list[Window]:
    """The windows of Qwen's layers: from `max_window_layers` on, and only with `use_sliding_window`."""
    num_layers = positive(config, "num_hidden_layers")
    if not config.get("use_sliding_window", False) or config.get("sliding_window") is None:
        return [None] * num_layers
    first = config.get("max_window_layers", 28)
    return layer_windows(config, [layer >= first for layer in range(num_layers)])


QWEN2 = DecoderArchitecture(read)
