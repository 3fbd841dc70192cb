"""Attention over the paged KV cache, as gathers and `scaled_dot_product_attention`: the same code on CPU and CUDA.

Decodes of a step are one masked batch (split by length only where padding would waste more than it saves); each
prefill chunk is a call of its own. Query heads that share a KV head are folded into the query length, so that no key
is read twice. Everything that does not depend on the layer (tables, masks) is made once a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.runner.kv_cache import LayerCache
from engine.runner.product_attention import attend_chunk, attend_decodes, decodes_by_products, uses_products


class AttentionPart(Protocol):
    """Some rows of a step's batch; attends for them in one layer."""

    rows: slice | torch.Tensor

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: LayerCache, scale: float
    ) -> torch.Tensor:
        """Of the part's rows: `query` `[T, heads, D]`, `key` and `value` `[T, kv_heads, D]` -> `[T, heads, D]`."""
        ...


@dataclass(slots=True)
class DecodePart:
    """Sequences with one new token each.

    `blocks` is the padded block table, flat `[B * blocks a row]`; of each row's tokens the first `length` are read.
    `mask` is `[B, 1, 1, length]`, zero or -inf, or None when there is nothing to hide.
    """

    rows: slice | torch.Tensor
    blocks: torch.Tensor
    length: int
    mask: torch.Tensor | None

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: LayerCache, scale: float
    ) -> torch.Tensor:
        batch, heads, dim = query.shape
        kv_heads = key.shape[1]
        keys = cache.gather(cache.keys, self.blocks, batch, self.length)  # [B, kv_heads, L, D]
        values = cache.gather(cache.values, self.blocks, batch, self.length)
        folded = query.view(batch, kv_heads, heads // kv_heads, dim)
        if decodes_by_products(query.device, query.dtype, batch):
            return attend_decodes(folded, keys, values, self.mask, scale)
        out = scaled_dot_product_attention(folded, keys, values, self.mask, scale=scale)
        return out.reshape(batch, heads, dim)


@dataclass(slots=True)
class PrefillPart:
    """A chunk of one sequence from its start: the keys and values are all in hand."""

    rows: slice | torch.Tensor

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: LayerCache, scale: float
    ) -> torch.Tensor:
        keys, values = key.transpose(0, 1), value.transpose(0, 1)  # [kv_heads, T, D]
        if uses_products(query.device, query.dtype):
            return attend_chunk(query, keys, values, scale)
        out = scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0),
            keys.unsqueeze(0),
            values.unsqueeze(0),
            is_causal=True,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # [1, heads, T, D]
        return out[0].transpose(0, 1)


@dataclass(slots=True)
class ContinuedPrefillPart:
    """A chunk of one sequence behind a cached prefix of it, `length` tokens in all.

    `mask` is `[group * T, length]`, zero or -inf; None where attention is computed as products, which need none.
    """

    rows: slice | torch.Tensor
    blocks: torch.Tensor
    length: int
    mask: torch.Tensor | None

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: LayerCache, scale: float
    ) -> torch.Tensor:
        tokens, heads, dim = query.shape
        kv_heads = key.shape[1]
        group = heads // kv_heads
        keys = cache.gather(cache.keys, self.blocks, 1, self.length)  # [1, kv_heads, L, D]
        values = cache.gather(cache.values, self.blocks, 1, self.length)
        if self.mask is None:
            return attend_chunk(query, keys[0], values[0], scale)
        folded = query.view(tokens, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(1, kv_heads, group * tokens, dim)
        out = scaled_dot_product_attention(folded, keys, values, self.mask, scale=scale)
        return out.view(kv_heads, group, tokens, dim).permute(2, 0, 1, 3).reshape(tokens, heads, dim)
