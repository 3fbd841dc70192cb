"""Grouped-query attention: Q, K and V as one product, rotary positions, and norms of the heads where there are any."""

from __future__ import annotations

import torch
from torch.nn.functional import rms_norm

from engine.runner.forward_batch import ForwardBatch
from engine.runner.kv_cache import LayerCache
from engine.runner.linear import make_linear
from engine.runner.models.decoder_config import DecoderConfig, Window
from engine.runner.rope import Rope, RopeTables
from engine.runner.weights.checkpoint import Checkpoint


class GroupedAttention:
    """The attention of one layer, with its weights."""

    def __init__(
        self, config: DecoderConfig, checkpoint: Checkpoint, prefix: str, rope: Rope, window: Window = None
    ) -> None:
        qkv, output = [f"{prefix}{part}_proj" for part in "qkv"], f"{prefix}o_proj"
        self._heads, self._head_dim = config.num_heads, config.head_dim
        self._turned = config.num_heads + config.num_kv_heads  # heads that rope turns: queries, then keys
        self._scale, self._eps = config.head_dim**-0.5, config.rms_norm_eps
        self._rope, self._window = rope, window
        self._qkv = make_linear(checkpoint.take_weights(*qkv), checkpoint.take_biases(*qkv))
        self._output = make_linear(checkpoint.take_weights(output), checkpoint.take_biases(output))
        self._head_norms = _head_norms(config, checkpoint, prefix) if config.head_norms else None

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, tables: RopeTables, batch: ForwardBatch, cache: LayerCache
    ) -> torch.Tensor:
        """residual + attention(x), all `[T, H]`; writes the keys and values of x to `cache`."""
        qkv = self._qkv(x).view(x.shape[0], -1, self._head_dim)  # [T, heads + 2 * kv_heads, D]
        turned = qkv[:, : self._turned]
        if self._head_norms is not None:
            turned = rms_norm(turned, turned.shape[2:], None, self._eps).mul_(self._head_norms)
        turned = self._rope.apply(turned, tables)
        query, key, value = turned[:, : self._heads], turned[:, self._heads :], qkv[:, self._turned :]
        cache.write(batch.slots, key, value)
        return self._output.add(batch.attend(query, key, value, cache, self._scale, self._window), residual)


def _head_norms(config: DecoderConfig, checkpoint: Checkpoint, prefix: str) -> torch.Tensor:
    """The norm's weight of each head that is turned, `[heads + kv_heads, D]`."""
    query, key = (checkpoint.take(f"{prefix}{name}.weight") for name in ("q_norm", "k_norm"))
    return torch.cat((query.expand(config.num_heads, -1), key.expand(config.num_kv_heads, -1)))
