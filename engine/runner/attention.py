"""Attention over the paged KV cache, as gathers and `scaled_dot_product_attention`: the same code on CPU and CUDA.

Decodes of a step are one masked batch (split by length only where padding would waste more than it saves); each
prefill chunk is a call of its own. Query heads that share a KV head are folded into the query length, so that no key
is read twice. Everything that does not depend on the layer (tables, masks) is made once a step.

A part works in two steps, `context` and `attend`, for models that transform what is cached in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.runner.kv_cache import LayerCache
from engine.runner.models.decoder_config import Window
from engine.runner.product_attention import attend_chunk, attend_decodes, decodes_by_products, uses_products

KeysValues = tuple[torch.Tensor, torch.Tensor]


class AttentionPart(Protocol):
    """Some rows of a step's batch; attends for them in one layer. `one_token_each` where they are decodes."""

    rows: slice | torch.Tensor

    @property
    def one_token_each(self) -> bool: ...

    def context(self, key: torch.Tensor, value: torch.Tensor, cache: LayerCache) -> KeysValues:
        """All that the part's rows look at, `[B, kv_heads, L, D]`; `key`, `value` `[T, kv_heads, D]` are their own."""
        ...

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        """`query` `[T, heads, D]` over a context `[B, kv_heads, L, D]` -> `[T, heads, D of the values]`."""
        ...


@dataclass(slots=True)
class DecodePart:
    """Sequences with one new token each.

    `blocks` is the padded block table, flat `[B * blocks a row]`; of each row's tokens the first `length` are read.
    `mask` is `[B, 1, 1, length]`, zero or -inf, or None when there is nothing to hide.
    """

    rows: slice | torch.Tensor
    blocks: torch.Tensor
    batch: int
    length: int
    mask: torch.Tensor | None

    @property
    def one_token_each(self) -> bool:
        return True

    def context(self, key: torch.Tensor, value: torch.Tensor, cache: LayerCache) -> KeysValues:
        return cache.gather(self.blocks, self.batch, self.length)

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        batch, heads, dim = query.shape
        kv_heads = keys.shape[1]
        folded = query.reshape(batch, kv_heads, heads // kv_heads, dim)
        if decodes_by_products(query.device, query.dtype, batch):
            return attend_decodes(folded, keys, values, self.mask, scale)
        out = scaled_dot_product_attention(folded, keys, values, self.mask, scale=scale)
        return out.reshape(batch, heads, -1)


@dataclass(slots=True)
class PrefillPart:
    """A chunk of one sequence from its start: the keys and values are all in hand.

    Each token looks at `window` tokens up to itself, at all of them where that is None; `mask` `[T, T]`, zero or -inf,
    says so where a window is shorter than the chunk and attention is not computed as products.
    """

    rows: slice | torch.Tensor
    window: int | None = None
    mask: torch.Tensor | None = None

    @property
    def one_token_each(self) -> bool:
        return False

    def context(self, key: torch.Tensor, value: torch.Tensor, cache: LayerCache) -> KeysValues:
        return key.transpose(0, 1).unsqueeze(0), value.transpose(0, 1).unsqueeze(0)

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        if uses_products(query.device, query.dtype):
            return attend_chunk(query, keys[0], values[0], scale, self.window)
        out = scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0),
            keys,
            values,
            self.mask,
            is_causal=self.mask is None,
            scale=scale,
            enable_gqa=query.shape[1] != keys.shape[1],
        )  # [1, heads, T, D]
        return out[0].transpose(0, 1)


@dataclass(slots=True)
class ContinuedPrefillPart:
    """A chunk of one sequence behind a cached prefix of it, `length` tokens in all.

    `mask` is `[group * T, length]`, zero or -inf; None where attention is computed as products, or by a kernel of torch
    that knows what each token sees.
    """

    rows: slice | torch.Tensor
    blocks: torch.Tensor
    length: int
    window: int | None
    mask: torch.Tensor | None

    @property
    def one_token_each(self) -> bool:
        return False

    def context(self, key: torch.Tensor, value: torch.Tensor, cache: LayerCache) -> KeysValues:
        return cache.gather(self.blocks, 1, self.length)

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        if self.mask is None and uses_products(query.device, query.dtype):
            return attend_chunk(query, keys[0], values[0], scale, self.window)
        if self.mask is None:
            return _attend_behind_prefix(query, keys, values, scale)
        tokens, heads, dim = query.shape
        kv_heads = keys.shape[1]
        group = heads // kv_heads
        folded = query.view(tokens, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(1, kv_heads, group * tokens, dim)
        out = scaled_dot_product_attention(folded, keys, values, self.mask, scale=scale)
        return out.view(kv_heads, group, tokens, -1).permute(2, 0, 1, 3).reshape(tokens, heads, -1)


def continues_without_mask(device: torch.device, dtype: torch.dtype, window: Window) -> bool:
    """Whether a chunk behind a prefix needs no mask: one of a long context would take gigabytes on a GPU."""
    on_gpu = device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)
    return uses_products(device, dtype) or (on_gpu and window is None)


def _attend_behind_prefix(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """`query` `[T, heads, D]`, the last T tokens of a context `[1, kv_heads, L, D]`, each of which sees all before."""
    from torch.nn.attention.bias import causal_lower_right  # takes seconds, and only GPUs need it

    seen: Any = causal_lower_right(query.shape[0], keys.shape[2])
    out = scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0), keys, values, seen, scale=scale, enable_gqa=query.shape[1] != keys.shape[1]
    )  # [1, heads, T, D of the values]
    return out[0].transpose(0, 1)
