"""Mistral: a Llama in which a token looks back over a window of tokens, where config gives one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.runner.models.architecture import DecoderArchitecture
from engine.runner.models.decoder_config import DecoderConfig, layer_windows, positive


def read(config: Mapping[str, Any]) -> DecoderConfig:
    """The numbers of a Mistral; raises `ModelLoadError`."""
    limited = config.get("sliding_window") is not None
    windows = layer_windows(config, [limited] * positive(config, "num_hidden_layers"))
    return DecoderConfig.from_dict(config, windows)


MISTRAL = DecoderArchitecture(read)
