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

_PRODUCTS_FROM = 4  # decodes in a batch


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
    `mask` is `[B, 1, 1, length]`, zero or -inf, or None when there is nothing to hide. Many rows in bfloat16 on a CPU
    are computed as plain products: the library's kernel is made for long queries, and takes up to twice as long there.
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
        if batch >= _PRODUCTS_FROM and query.dtype is torch.bfloat16 and query.device.type == "cpu":
            return _attend_by_products(folded, keys, values, self.mask, scale)
        out = scaled_dot_product_attention(folded, keys, values, self.mask, scale=scale)
        return out.reshape(batch, heads, dim)


@dataclass(slots=True)
class PrefillPart:
    """A chunk of one sequence from its start: the keys and values are all in hand."""

    rows: slice | torch.Tensor

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: LayerCache, scale: float
    ) -> torch.Tensor:
        out = scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0),
            key.transpose(0, 1).unsqueeze(0),
            value.transpose(0, 1).unsqueeze(0),
            is_causal=True,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # [1, heads, T, D]
        return out[0].transpose(0, 1)


@dataclass(slots=True)
class ContinuedPrefillPart:
    """A chunk of one sequence behind a cached prefix of it; `mask` is `[group * T, L]`, zero or -inf."""

    rows: slice | torch.Tensor
    blocks: torch.Tensor
    length: int
    mask: torch.Tensor

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: LayerCache, scale: float
    ) -> torch.Tensor:
        tokens, heads, dim = query.shape
        kv_heads = key.shape[1]
        group = heads // kv_heads
        keys = cache.gather(cache.keys, self.blocks, 1, self.length)  # [1, kv_heads, L, D]
        values = cache.gather(cache.values, self.blocks, 1, self.length)
        folded = query.view(tokens, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(1, kv_heads, group * tokens, dim)
        out = scaled_dot_product_attention(folded, keys, values, self.mask, scale=scale)
        return out.view(kv_heads, group, tokens, dim).permute(2, 0, 1, 3).reshape(tokens, heads, dim)


def _attend_by_products(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """`query` `[B, kv_heads, group, D]`, `keys` and `values` `[B, kv_heads, L, D]` -> `[B, heads, D]`.

    Keys lie as `[B, L, kv_heads * D]`. Each query is widened to that, zero but for its own KV head, so that one product
    a sequence serves all heads and nothing is copied.
    """
    batch, kv_heads, group, dim = query.shape
    own = torch.eye(kv_heads, dtype=query.dtype).view(1, kv_heads, 1, kv_heads, 1)
    wide = (query.unsqueeze(3) * own).view(batch, kv_heads * group, kv_heads * dim)
    flat_keys, flat_values = (stored.transpose(1, 2).flatten(2) for stored in (keys, values))  # [B, L, kv_heads * D]
    scores = torch.bmm(wide, flat_keys.transpose(1, 2)).float().mul_(scale)  # [B, heads, L]
    if mask is not None:
        scores.add_(mask.squeeze(1))
    out = torch.bmm(scores.softmax(dim=-1).to(query.dtype), flat_values)
    own_parts = out.view(batch, kv_heads, group, kv_heads, dim).diagonal(dim1=1, dim2=3)  # [B, group, D, kv_heads]
    return own_parts.permute(0, 3, 1, 2).reshape(batch, kv_heads * group, dim)
