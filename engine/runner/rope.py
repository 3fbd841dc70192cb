"""Rotary position embedding: tables of cosines and sines, and their application to all heads at once.

The half-split form: element i of a head turns with element i + head_dim / 2. The sign of the rotated half lives in the
sine table, so that one roll serves both halves.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.hf_directory import rope_scaling

_DEFAULT_THETA = 10000.0


def rope_frequencies(config: dict[str, Any], rotary_dim: int) -> torch.Tensor:
    """Radians a position for each pair of elements, float32 `[rotary_dim / 2]`, by the scaling in `config`."""
    theta = config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta", _DEFAULT_THETA)
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
    frequencies: torch.Tensor = 1.0 / theta**exponents
    scaling = rope_scaling(config)
    if scaling is None:
        return frequencies
    if scaling["rope_type"] not in _SCALINGS:
        raise ModelLoadError(f"rope scaling {scaling['rope_type']!r} is not supported: only {', '.join(_SCALINGS)}")
    return _SCALINGS[scaling["rope_type"]](frequencies, scaling)


def _linear(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    return frequencies / float(scaling["factor"])


def _llama3(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Slow frequencies are divided by the factor, fast ones kept, those between blended."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    scaled: torch.Tensor = (1 - kept) * frequencies / float(scaling["factor"]) + kept * frequencies
    return scaled


_SCALINGS = {"linear": _linear, "llama3": _llama3}


class Rope:
    """Turns queries and keys by their positions; tables for positions below `max_positions`."""

    def __init__(
        self, frequencies: torch.Tensor, max_positions: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        angles = torch.outer(torch.arange(max_positions).float(), frequencies)  # [P, D / 2]
        self._half = frequencies.shape[0]
        self._cos = torch.cat((angles.cos(), angles.cos()), -1).to(device, dtype)  # [P, D]
        self._sin = torch.cat((-angles.sin(), angles.sin()), -1).to(device, dtype)

    def tables(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines of `positions` `[T]`, each `[T, 1, D]`, shared by all layers."""
        return self._cos.index_select(0, positions).unsqueeze(1), self._sin.index_select(0, positions).unsqueeze(1)

    def apply(self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Turn the heads `x` `[T, heads, D]`."""
        cos, sin = tables
        return torch.addcmul(x * cos, x.roll(self._half, -1), sin)
