"""A checkpoint's tensors as a decoder uses them: all of them there, nothing left over, fused ones taken apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.runner.models.decoder_config import DecoderConfig
from engine.runner.models.shapes import HEAD, ROPE_FACTORS, tensor_shapes
from engine.runner.rope_frequencies import rope_frequencies
from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.fused import SplitTensors
from engine.runner.weights.tensors import Tensors

_NAMED = 4


class ModelTensors(SplitTensors):
    """The tensors of a model by name; `shapes` are what its architecture expects them to be.

    Raises `ModelLoadError` when tensors are missing or left over.
    """

    def __init__(self, numbers: DecoderConfig, tensors: Tensors) -> None:
        self.shapes = tensor_shapes(numbers)
        if ROPE_FACTORS in tensors.names:
            self.shapes[ROPE_FACTORS] = (numbers.rotary_dim // 2,)
        super().__init__(tensors, self.shapes)
        missing = [name for name in self.shapes if name not in self.names]
        if missing:
            raise ModelLoadError(f"the model's weights lack {_listed(missing)}: download or convert the model again")
        left_over = sorted(self.names - self.shapes.keys() - _ignored(numbers, self.names))
        if left_over:
            raise ModelLoadError(
                f"the model's weights hold {_listed(left_over)}, which its architecture does not use: "
                "its configuration does not describe it"
            )


def model_frequencies(config: dict[str, Any], numbers: DecoderConfig, tensors: Tensors) -> np.ndarray[Any, Any]:
    """Radians a position, float32 `[rotary_dim / 2]`, by the configuration and the factors a GGUF file may store."""
    frequencies = rope_frequencies(config, numbers.rotary_dim)
    return frequencies / tensors.floats(ROPE_FACTORS) if ROPE_FACTORS in tensors.names else frequencies


def _ignored(numbers: DecoderConfig, names: Iterable[str]) -> frozenset[str]:
    """Tensors that may be there without being used."""
    unused = range(numbers.num_layers, numbers.num_layers + numbers.unused_layers)
    prefixes = tuple(f"model.layers.{layer}." for layer in unused)
    behind = (name for name in names if name.startswith(prefixes)) if prefixes else ()
    return frozenset([*behind, HEAD] if numbers.tied else behind)


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more tensors" if more > 0 else "")
