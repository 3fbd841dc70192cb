"""How fast the elements of queries and keys turn with their position, and by how much that makes them grow."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.hf_directory import rope_scaling

_DEFAULT_THETA = 10000.0
Floats: TypeAlias = "np.ndarray[Any, Any]"


def rope_frequencies(config: dict[str, Any], rotary_dim: int) -> Floats:
    """Radians a position for each pair of elements, float32 `[rotary_dim / 2]`, by the scaling in `config`."""
    theta = config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta", _DEFAULT_THETA)
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    frequencies: Floats = np.float32(1) / np.float32(theta) ** exponents
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


def _linear(frequencies: Floats, scaling: dict[str, Any]) -> Floats:
    return frequencies / np.float32(scaling["factor"])


def _llama3(frequencies: Floats, scaling: dict[str, Any]) -> Floats:
    """Slow frequencies are divided by the factor, fast ones kept, those between blended."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = np.float32(scaling["original_max_position_embeddings"] / (2 * math.pi)) * frequencies
    kept = ((turns - low) / (high - low)).clip(0, 1).astype(np.float32)
    scaled: Floats = (1 - kept) * frequencies / np.float32(scaling["factor"]) + kept * frequencies
    return scaled


def _yarn(frequencies: Floats, scaling: dict[str, Any]) -> Floats:
    """As llama3, but blended by the number of the pair, between those that turn `beta_fast` and `beta_slow` times."""
    pairs, theta = frequencies.shape[0], float(scaling["rope_theta"])
    context = scaling["original_max_position_embeddings"] / (2 * math.pi)
    turns = [float(scaling.get("beta_fast") or 32), float(scaling.get("beta_slow") or 1)]
    fast, slow = (pairs * math.log(context / turn) / math.log(theta) for turn in turns)
    if scaling.get("truncate", True):
        fast, slow = math.floor(fast), math.ceil(slow)
    fast, slow = max(fast, 0), min(slow, 2 * pairs - 1)
    slowed = ((np.arange(pairs) - fast) / max(slow - fast, 0.001)).clip(0, 1).astype(np.float32)
    scaled: Floats = slowed * frequencies / np.float32(scaling["factor"]) + (1 - slowed) * frequencies
    return scaled


_SCALINGS = {"linear": _linear, "llama3": _llama3, "yarn": _yarn}
