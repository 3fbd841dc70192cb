"""What is known of a family of decoders before any weight is read; torch comes in when it computes one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from engine.runner.models.decoder_config import DecoderConfig
from engine.runner.models.shapes import tensor_shapes
from engine.runner.models.sizes import ModelSizes
from engine.runner.weights.tensors import Tensors

if TYPE_CHECKING:
    import torch

    from engine.runner.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class DecoderArchitecture:
    """Decoders whose configuration `read` understands; it raises `ModelLoadError` for what is not computed."""

    read: Callable[[Mapping[str, Any]], DecoderConfig]

    def load(
        self, config: dict[str, Any], tensors: Tensors, *, device: torch.device, dtype: torch.dtype, max_positions: int
    ) -> Decoder:
        """The model with its weights, computed by torch; raises `ModelLoadError`."""
        from engine.runner.models.decoder import load_decoder

        return load_decoder(config, self.read(config), tensors, device=device, dtype=dtype, max_positions=max_positions)

    def sizes(self, config: dict[str, Any], dtype: Any) -> ModelSizes:
        """The model's sizes, without reading its weights; `dtype` as in `KVShape`."""
        numbers = self.read(config)
        return ModelSizes(
            num_parameters=sum(prod(shape) for shape in tensor_shapes(numbers).values()),
            tied_parameters=numbers.vocab_size * numbers.hidden_size if numbers.tied else 0,
            hidden_size=numbers.hidden_size,
            intermediate_size=numbers.widest,
            vocab_size=numbers.vocab_size,
            kv_shape=numbers.kv_shape(dtype),
            context_size=numbers.context_size,
        )
