"""The decoder that the architectures share: embedding, layers of attention and MLP beside residuals, norm, head.

The model is plain objects that hold tensors; a step is one Python call a layer and part. Which attention and which MLP
a layer gets follows from the numbers read from its configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from engine.runner.forward_batch import ForwardBatch
from engine.runner.kv_cache import KVCache, LayerCache
from engine.runner.linear import make_linear
from engine.runner.models.decoder_config import DecoderConfig, Window
from engine.runner.models.experts import Experts
from engine.runner.models.grouped_attention import GroupedAttention
from engine.runner.models.latent_attention import LatentAttention
from engine.runner.models.mlp import GatedMlp
from engine.runner.models.model_tensors import ModelTensors, model_frequencies
from engine.runner.models.norm import RmsNorm
from engine.runner.models.shapes import EMBEDDING, HEAD
from engine.runner.rope import Rope, RopeTables
from engine.runner.rope_frequencies import rope_magnitude
from engine.runner.weights.checkpoint import Checkpoint
from engine.runner.weights.tensors import Tensors


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


class Decoder:
    """A decoder with its weights; see `Model` in the registry for the interface."""

    def __init__(self, config: DecoderConfig, checkpoint: Checkpoint, rope: Rope) -> None:
        self.vocab_size = config.vocab_size
        self.kv_shape = config.kv_shape(checkpoint.dtype)
        self.group = config.group
        self.windows: Sequence[Window] = tuple(dict.fromkeys(config.windows))
        self._rope = rope
        self._embedding = checkpoint.take(EMBEDDING)  # [V, H]
        self._layers = [_Layer(config, checkpoint, layer, rope) for layer in range(config.num_layers)]
        self.experts = [layer.mlp for layer in self._layers if isinstance(layer.mlp, Experts)]
        self._norm = RmsNorm(checkpoint.take("model.norm.weight"), config.rms_norm_eps)
        self._head = make_linear(self._embedding if config.tied else checkpoint.take(HEAD))

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
        self.mlp = _make_mlp(config, checkpoint, index)

    def forward(self, x: torch.Tensor, tables: RopeTables, batch: ForwardBatch, cache: LayerCache) -> torch.Tensor:
        """x `[T, H]` -> `[T, H]`."""
        x = self._attention.forward(self._input_norm(x), x, tables, batch, cache)
        return self.mlp.forward(self._mlp_norm(x), x)


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


def load_decoder(
    config: dict[str, Any],
    numbers: DecoderConfig,
    tensors: Tensors,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_positions: int,
) -> Decoder:
    """The model with its weights; raises `ModelLoadError`."""
    limited = tuple(None if window is None or window >= max_positions else window for window in numbers.windows)
    numbers = replace(numbers, windows=limited)
    found = ModelTensors(numbers, tensors)
    checkpoint = Checkpoint(found, found.shapes, device=device, dtype=dtype)
    frequencies = torch.from_numpy(model_frequencies(config, numbers, found))
    rope = Rope(frequencies, max_positions, dtype, device, rope_magnitude(config))
    with checkpoint.progress():
        return Decoder(numbers, checkpoint, rope)
