"""Attention as plain products and a softmax, for bfloat16 on a CPU.

The library's fused kernel costs up to twice as much there, for the short queries of decodes as for the long ones of a
prefill. Scores are float32; softmax weights are rounded to bfloat16 for the second product.
"""

from __future__ import annotations

import torch

_LEAST_DECODES = 4  # with fewer, the fused kernel's single call is faster
_CHUNK = 128  # query tokens that are computed together: the keys behind them are not looked at


def uses_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this way of computing is the faster one."""
    return device.type == "cpu" and dtype is torch.bfloat16


def decodes_by_products(device: torch.device, dtype: torch.dtype, batch: int) -> bool:
    """The same for `batch` sequences with one query token each."""
    return batch >= _LEAST_DECODES and uses_products(device, dtype)


def attend_decodes(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """`query` `[B, kv_heads, group, D]`, `keys`, `values` `[B, kv_heads, L, D]`, `mask` `[B, 1, 1, L]` (0 or -inf).

    Gives `[B, heads, D of the values]`. Keys lie as `[B, L, kv_heads * D]`. Each query is widened to that, zero but for
    its own KV head, so that one product a sequence serves all heads and nothing is copied.
    """
    batch, kv_heads, group, dim = query.shape
    own = torch.eye(kv_heads, dtype=query.dtype).view(1, kv_heads, 1, kv_heads, 1)
    wide = (query.unsqueeze(3) * own).view(batch, kv_heads * group, kv_heads * dim)
    flat_keys, flat_values = (stored.transpose(1, 2).flatten(2) for stored in (keys, values))  # [B, L, kv_heads * D]
    scores = torch.bmm(wide, flat_keys.transpose(1, 2)).float().mul_(scale)  # [B, heads, L]
    if mask is not None:
        scores.add_(mask.squeeze(1))
    out = torch.bmm(scores.softmax(dim=-1).to(query.dtype), flat_values)
    own_parts = out.view(batch, kv_heads, group, kv_heads, -1).diagonal(dim1=1, dim2=3)  # [B, group, D, kv_heads]
    return own_parts.permute(0, 3, 1, 2).reshape(batch, kv_heads * group, -1)


def attend_chunk(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None = None
) -> torch.Tensor:
    """The last T tokens of one sequence of L: `query` `[T, heads, D]`, `keys` and `values` `[kv_heads, L, D]`.

    Gives `[T, heads, D of the values]`; each token sees itself and those before it, `window` of them in all.
    """
    tokens, heads, dim = query.shape
    kv_heads, length, _ = keys.shape
    group, prefix = heads // kv_heads, length - tokens
    keys, values = keys.contiguous(), values.contiguous()
    grouped = query.view(tokens, kv_heads, group, dim).permute(1, 2, 0, 3)  # [kv_heads, group, T, D]
    out = torch.empty(tokens, kv_heads, group, values.shape[-1], dtype=query.dtype)
    for begin in range(0, tokens, _CHUNK):
        end = min(begin + _CHUNK, tokens)
        size, seen = end - begin, prefix + end
        first = 0 if window is None else max(0, prefix + begin - window + 1)
        rows = grouped[:, :, begin:end].reshape(kv_heads, group * size, dim)
        scores = torch.bmm(rows, keys[:, first:seen].transpose(1, 2)).float().mul_(scale)
        scores = _hide(scores.view(kv_heads, group, size, seen - first), window)
        weights = scores.softmax(dim=-1).to(query.dtype).view(kv_heads, group * size, seen - first)
        part = torch.bmm(weights, values[:, first:seen]).view(kv_heads, group, size, -1)
        out[begin:end] = part.permute(2, 0, 1, 3)
    return out.view(tokens, heads, -1)


def _hide(scores: torch.Tensor, window: int | None) -> torch.Tensor:
    """Of `scores` `[..., T, L]`, for the last T of L tokens: -inf for later tokens and those outside the window."""
    size, length = scores.shape[-2:]
    scores[..., length - size :] += torch.full((size, size), -torch.inf).triu_(1)
    if window is not None:
        scores += torch.full((size, length), -torch.inf).tril_(length - size - window)
    return scores
