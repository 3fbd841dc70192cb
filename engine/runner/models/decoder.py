"""The decoder that the architectures share: embedding, layers of attention and MLP beside residuals, norm, head.

The model is plain objects that hold tensors; a step is one Python call a layer and part. An architecture is a
`DecoderArchitecture`: the function that reads its configuration. Which attention and which MLP a layer gets follows
from the numbers read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import torch

from engine.runner.forward_batch import ForwardBatch, Window
from engine.runner.kv_cache import KVCache, LayerCache
from engine.runner.linear import make_linear
from engine.runner.models.decoder_config import DecoderConfig
from engine.runner.models.experts import Experts, experts_shapes
from engine.runner.models.grouped_attention import GroupedAttention, grouped_shapes
from engine.runner.models.latent_attention import LatentAttention, latent_shapes
from engine.runner.models.mlp import GatedMlp, mlp_shapes
from engine.runner.models.norm import RmsNorm
from engine.runner.models.sizes import ModelSizes
from engine.runner.rope import Rope, RopeTables, rope_frequencies, rope_magnitude
from engine.runner.weights.checkpoint import Checkpoint, Shapes
from engine.runner.weights.fused import SplitTensors
from engine.runner.weights.tensors import Tensors

_EMBEDDING, _HEAD, _ROPE_FACTORS = "model.embed_tokens.weight", "lm_head.weight", "model.rope_factors"


class Attention(Protocol):
    """The attention of one layer."""

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, tables: RopeTables, batch: ForwardBatch, cache: LayerCache
    ) -> torch.Tensor:
        """residual + attention(x), all `[T, H]`; writes what later tokens need of x to `cache`."""
        ...


class FeedForward(Protocol):
    """The MLP of one layer, or its experts."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + MLP(x), all `[T, H]`."""
        ...


def tensor_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint, by name."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        _EMBEDDING: (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied:
        shapes[_HEAD] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{norm}.weight"] = (hidden,)
        shapes |= _attention_shapes(f"{prefix}self_attn.", config)
        if config.experts is not None and layer in config.sparse_layers:
            shapes |= experts_shapes(f"{prefix}mlp.", config.experts, hidden)
        else:
            shapes |= mlp_shapes(f"{prefix}mlp.", hidden, config.intermediate_size, config.mlp_bias)
    return shapes


def _attention_shapes(prefix: str, config: DecoderConfig) -> Shapes:
    if config.latent is not None:
        return latent_shapes(prefix, config, config.latent)
    return grouped_shapes(prefix, config)


def open_checkpoint(
    numbers: DecoderConfig, tensors: Tensors, *, device: torch.device | str, dtype: torch.dtype
) -> Checkpoint:
    """The model's tensors, all there and none too many; raises `ModelLoadError`."""
    shapes = tensor_shapes(numbers)
    if _ROPE_FACTORS in tensors.names:
        shapes[_ROPE_FACTORS] = (numbers.rotary_dim // 2,)
    split = SplitTensors(tensors, shapes)
    return Checkpoint(split, shapes, ignored=_ignored(numbers, split), device=device, dtype=dtype)


def _ignored(numbers: DecoderConfig, tensors: Tensors) -> frozenset[str]:
    """Tensors that may be there without being used."""
    unused = range(numbers.num_layers, numbers.num_layers + numbers.unused_layers)
    prefixes = tuple(f"model.layers.{layer}." for layer in unused)
    behind = (name for name in tensors.names if name.startswith(prefixes)) if prefixes else ()
    return frozenset([*behind, _HEAD] if numbers.tied else behind)


def model_frequencies(config: dict[str, Any], numbers: DecoderConfig, checkpoint: Checkpoint) -> torch.Tensor:
    """Radians a position, float32 `[rotary_dim / 2]`, by the configuration and the factors a GGUF file may store."""
    frequencies = rope_frequencies(config, numbers.rotary_dim)
    return frequencies / checkpoint.take_float(_ROPE_FACTORS) if _ROPE_FACTORS in checkpoint else frequencies


class Decoder:
    """A decoder with its weights; see `Model` in the registry for the interface."""

    def __init__(self, config: DecoderConfig, checkpoint: Checkpoint, rope: Rope) -> None:
        self.vocab_size = config.vocab_size
        self.kv_shape = config.kv_shape(checkpoint.dtype)
        self.group = config.group
        self.windows: Sequence[Window] = tuple(dict.fromkeys(config.windows))
        self.synchronises = config.experts is not None  # which wait for the number of rows of each expert
        self._rope = rope
        self._embedding = checkpoint.take(_EMBEDDING)  # [V, H]
        self._layers = [_Layer(config, checkpoint, layer, rope) for layer in range(config.num_layers)]
        self._norm = RmsNorm(checkpoint.take("model.norm.weight"), config.rms_norm_eps)
        self._head = make_linear(self._embedding if config.tied else checkpoint.take(_HEAD))

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Compute the batch's tokens, write their KV to `cache`; float32 logits `[sampling rows, V]`."""
        x = self._embedding.index_select(0, batch.token_ids)  # [T, H]
        tables = self._rope.tables(batch.positions)
        for layer, layer_cache in zip(self._layers, cache.layers, strict=True):
            x = layer.forward(x, tables, batch, layer_cache)
        if batch.sampling_rows is not None:
            x = x.index_select(0, batch.sampling_rows)
        if not x.shape[0]:
            return x.new_empty((0, self.vocab_size), dtype=torch.float32)
        return self._head(self._norm(x)).float()


class _Layer:
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: DecoderConfig, checkpoint: Checkpoint, index: int, rope: Rope) -> None:
        prefix, eps = f"model.layers.{index}.", config.rms_norm_eps
        self._input_norm = RmsNorm(checkpoint.take(f"{prefix}input_layernorm.weight"), eps)
        self._attention = _make_attention(config, checkpoint, index, rope)
        self._mlp_norm = RmsNorm(checkpoint.take(f"{prefix}post_attention_layernorm.weight"), eps)
        self._mlp = _make_mlp(config, checkpoint, index)

    def forward(self, x: torch.Tensor, tables: RopeTables, batch: ForwardBatch, cache: LayerCache) -> torch.Tensor:
        """x `[T, H]` -> `[T, H]`."""
        x = self._attention.forward(self._input_norm(x), x, tables, batch, cache)
        return self._mlp.forward(self._mlp_norm(x), x)


def _make_attention(config: DecoderConfig, checkpoint: Checkpoint, index: int, rope: Rope) -> Attention:
    prefix = f"model.layers.{index}.self_attn."
    if config.latent is not None:
        return LatentAttention(config, config.latent, checkpoint, prefix, rope)
    return GroupedAttention(config, checkpoint, prefix, rope, config.windows[index])


def _make_mlp(config: DecoderConfig, checkpoint: Checkpoint, index: int) -> FeedForward:
    prefix = f"model.layers.{index}.mlp."
    if config.experts is not None and index in config.sparse_layers:
        return Experts(config.experts, checkpoint, prefix)
    return GatedMlp(checkpoint, prefix)


@dataclass(frozen=True, slots=True)
class DecoderArchitecture:
    """Decoders whose configuration `read` understands; it raises `ModelLoadError` for what is not computed."""

    read: Callable[[Mapping[str, Any]], DecoderConfig]

    def load(
        self, config: dict[str, Any], tensors: Tensors, *, device: torch.device, dtype: torch.dtype, max_positions: int
    ) -> Decoder:
        """The model with its weights; raises `ModelLoadError`."""
        numbers = self.read(config)
        limited = tuple(None if window is None or window >= max_positions else window for window in numbers.windows)
        numbers = replace(numbers, windows=limited)
        checkpoint = open_checkpoint(numbers, tensors, device=device, dtype=dtype)
        frequencies = model_frequencies(config, numbers, checkpoint)
        rope = Rope(frequencies, max_positions, dtype, device, rope_magnitude(config))
        with checkpoint.progress():
            return Decoder(numbers, checkpoint, rope)

    def sizes(self, config: dict[str, Any], dtype: torch.dtype) -> ModelSizes:
        """The model's sizes, without reading its weights."""
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
