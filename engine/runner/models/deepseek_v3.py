"""DeepSeek V3 and R1: V2 with experts scored by sigmoid, chosen with the help of a stored correction.

The layers that predict further tokens, behind the last one of the model proper, are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.runner.models.architecture import DecoderArchitecture
from engine.runner.models.decoder_config import DecoderConfig
from engine.runner.models.deepseek_v2 import group_numbers, read_deepseek
from engine.runner.weights.errors import ModelLoadError

_EXPECTED = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
_GROUP_BEST = 2  # a group is as good as its two best experts together


def read(config: Mapping[str, Any]) -> DecoderConfig:
    """The numbers of a DeepSeek V3; raises `ModelLoadError`."""
    for name, expected in _EXPECTED.items():
        if config.get(name, expected) != expected:
            raise ModelLoadError(f"config: {name} {config[name]!r} is not supported, only {expected!r}")
    return read_deepseek(
        config,
        paired=bool(config.get("rope_interleave", True)),
        scoring="sigmoid",
        corrected=True,
        group_best=_GROUP_BEST,
        **group_numbers(config),
    )


DEEPSEEK_V3 = DecoderArchitecture(read)
