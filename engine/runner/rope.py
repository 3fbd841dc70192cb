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
RopeTables = tuple[torch.Tensor, torch.Tensor]
"""Cosines and signed sines of a batch's positions, each `[T, 1, D]`."""


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
    return _SCALINGS[scaling["rope_type"]](frequencies, {**scaling, "rope_theta": theta})


def rope_magnitude(config: dict[str, Any]) -> float:
    """By how much the turned elements of queries and keys grow: yarn sharpens attention over long contexts so."""
    scaling = rope_scaling(config)
    if scaling is None or scaling["rope_type"] != "yarn":
        return 1.0
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor, over, under = scaling["factor"], scaling.get("mscale"), scaling.get("mscale_all_dim")
    return yarn_magnitude(factor, over) / yarn_magnitude(factor, under) if over and under else yarn_magnitude(factor)


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """The published rule for a context that is `factor` times as long."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _linear(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    return frequencies / float(scaling["factor"])


def _llama3(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Slow frequencies are divided by the factor, fast ones kept, those between blended."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    scaled: torch.Tensor = (1 - kept) * frequencies / float(scaling["factor"]) + kept * frequencies
    return scaled


def _yarn(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """As llama3, but blended by the number of the pair, between those that turn `beta_fast` and `beta_slow` times."""
    pairs, theta = frequencies.shape[0], float(scaling["rope_theta"])
    context = scaling["original_max_position_embeddings"] / (2 * math.pi)
    turns = [float(scaling.get("beta_fast") or 32), float(scaling.get("beta_slow") or 1)]
    fast, slow = (pairs * math.log(context / turn) / math.log(theta) for turn in turns)
    if scaling.get("truncate", True):
        fast, slow = math.floor(fast), math.ceil(slow)
    fast, slow = max(fast, 0), min(slow, 2 * pairs - 1)
    slowed = ((torch.arange(pairs).float() - fast) / max(slow - fast, 0.001)).clamp(0, 1)
    scaled: torch.Tensor = slowed * frequencies / float(scaling["factor"]) + (1 - slowed) * frequencies
    return scaled


_SCALINGS = {"linear": _linear, "llama3": _llama3, "yarn": _yarn}


class Rope:
    """Turns queries and keys by their positions; tables for positions below `max_positions`.

    What is turned grows by `magnitude`.
    """

    def __init__(
        self,
        frequencies: torch.Tensor,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device | str,
        magnitude: float = 1.0,
    ) -> None:
        angles = torch.outer(torch.arange(max_positions).float(), frequencies)  # [P, D / 2]
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        self._half = frequencies.shape[0]
        self._cos = torch.cat((cos, cos), -1).to(device, dtype)  # [P, D]
        self._sin = torch.cat((-sin, sin), -1).to(device, dtype)

    def tables(self, positions: torch.Tensor) -> RopeTables:
        """Cosines and signed sines of `positions` `[T]`, each `[T, 1, D]`, shared by all layers."""
        return self._cos.index_select(0, positions).unsqueeze(1), self._sin.index_select(0, positions).unsqueeze(1)

    def apply(self, x: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        """Turn the heads `x` `[T, heads, D]`."""
        cos, sin = tables
        return torch.addcmul(x * cos, x.roll(self._half, -1), sin)
