"""Compressed attention: the cache holds one latent vector a token for all heads, and one turned key beside it.

A head's keys and values are products of the latent vector. A prefill computes them for the whole context. A decode
never does: the key's matrix is moved over to the query, the value's to the result, and attention is between latent
vectors, where all heads share one key.

    cached        [latent, rank | turned key, rope_dim]
    prefill       keys = [latent @ K | turned key], values = latent @ V                 per head
    decode        query = [plain query @ Kᵀ | turned query], result = (weights @ latent) @ V
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from engine.runner.attention import AttentionPart
from engine.runner.forward_batch import ForwardBatch
from engine.runner.kv_cache import LayerCache
from engine.runner.linear import make_linear
from engine.runner.models.decoder_config import DecoderConfig, LatentConfig
from engine.runner.models.norm import RmsNorm
from engine.runner.rope import Rope, RopeTables
from engine.runner.weights.checkpoint import Checkpoint

_NORM_EPS = 1e-6  # of the norms of compressed vectors, whatever the configuration says of the others


class LatentAttention:
    """The attention of one layer, with its weights."""

    def __init__(
        self, config: DecoderConfig, latent: LatentConfig, checkpoint: Checkpoint, prefix: str, rope: Rope
    ) -> None:
        self._heads, self._latent, self._rope = config.num_heads, latent, rope
        self._compress = make_linear(_turned_rows(checkpoint, f"{prefix}kv_a_proj_with_mqa", 1, latent))
        self._norm = RmsNorm(checkpoint.take(f"{prefix}kv_a_layernorm.weight"), _NORM_EPS)
        self._query_norm: RmsNorm | None = None
        if latent.query_rank is None:
            self._query = make_linear(_turned_rows(checkpoint, f"{prefix}q_proj", self._heads, latent))
        else:
            self._compress_query = make_linear(checkpoint.take(f"{prefix}q_a_proj.weight"))
            self._query_norm = RmsNorm(checkpoint.take(f"{prefix}q_a_layernorm.weight"), _NORM_EPS)
            self._query = make_linear(_turned_rows(checkpoint, f"{prefix}q_b_proj", self._heads, latent))
        self._expand = checkpoint.take(f"{prefix}kv_b_proj.weight")  # [heads * (plain + value), rank]
        by_head = self._expand.view(self._heads, -1, latent.rank)
        self._to_key, self._to_value = by_head[:, : latent.plain_dim], by_head[:, latent.plain_dim :]
        self._output = make_linear(checkpoint.take(f"{prefix}o_proj.weight"))

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, tables: RopeTables, batch: ForwardBatch, cache: LayerCache
    ) -> torch.Tensor:
        """residual + attention(x), all `[T, H]`; writes the latent vectors and turned keys of x to `cache`."""
        plain, turned = self._queries(x, tables)
        stored = self._stored(x, tables)  # [T, 1, rank + rope]
        values = stored[..., : self._latent.rank]
        cache.write(batch.slots, stored, values)
        out = x.new_empty(x.shape[0], self._heads, self._latent.value_dim)
        for part in batch.parts[None]:
            rows = part.rows
            attend = self._absorbed if part.one_token_each else self._expanded
            context = part.context(stored[rows], values[rows], cache)
            out[rows] = attend(part, plain[rows], turned[rows], *context)
        return self._output.add(out.flatten(1), residual)

    def _queries(self, x: torch.Tensor, tables: RopeTables) -> tuple[torch.Tensor, torch.Tensor]:
        """The plain queries `[T, heads, plain]` and the turned ones `[T, heads, rope]`."""
        compressed = x if self._query_norm is None else self._query_norm(self._compress_query(x))
        query = self._query(compressed).view(x.shape[0], self._heads, -1)
        plain_dim = self._latent.plain_dim
        return query[..., :plain_dim], self._rope.apply(query[..., plain_dim:], tables)

    def _stored(self, x: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        """What the cache holds of x, `[T, 1, rank + rope]`."""
        compressed, rank = self._compress(x).unsqueeze(1), self._latent.rank
        return torch.cat((self._norm(compressed[..., :rank]), self._rope.apply(compressed[..., rank:], tables)), dim=-1)

    def _absorbed(
        self, part: AttentionPart, plain: torch.Tensor, turned: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Attention between latent vectors: `keys` `[B, 1, L, rank + rope]` as stored -> `[B, heads, value]`."""
        latent_query = torch.bmm(plain.transpose(0, 1), self._to_key).transpose(0, 1)  # [B, heads, rank]
        mixed = part.attend(torch.cat((latent_query, turned), dim=-1), keys, values, self._latent.scale)
        return torch.bmm(mixed.transpose(0, 1), self._to_value.transpose(1, 2)).transpose(0, 1)

    def _expanded(
        self, part: AttentionPart, plain: torch.Tensor, turned: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Attention with keys and values for each head: `keys` `[1, 1, L, rank + rope]` -> `[T, heads, value]`."""
        by_head = linear(values[0, 0], self._expand).view(keys.shape[2], self._heads, -1).transpose(0, 1)
        plain_keys, head_values = by_head[..., : self._latent.plain_dim], by_head[..., self._latent.plain_dim :]
        turned_keys = keys[0, :, :, self._latent.rank :].expand(self._heads, -1, -1)
        head_keys = torch.cat((plain_keys, turned_keys), dim=-1).unsqueeze(0)  # [1, heads, L, plain + rope]
        return part.attend(torch.cat((plain, turned), dim=-1), head_keys, head_values.unsqueeze(0), self._latent.scale)


def _turned_rows(checkpoint: Checkpoint, module: str, heads: int, latent: LatentConfig) -> torch.Tensor:
    """A weight whose last `rope_dim` rows of each head are put in order for a rope that turns halves."""
    weight = checkpoint.take_rows(f"{module}.weight")
    if latent.paired:
        rows = weight.view(heads, -1, weight.shape[1])[:, -latent.rope_dim :]  # x0 y0 x1 y1 ...
        rows.copy_(torch.cat((rows[:, 0::2], rows[:, 1::2]), dim=1))
    return weight
