"""Attention as plain products against the fused kernel in float32."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.runner.product_attention import attend_chunk, attend_decodes

SCALE = 0.3
TOLERANCE = 0.02  # of values around 1, in bfloat16


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (3, 3), (2, 4)])
def test_decodes_of_different_lengths(kv_heads: int, group: int) -> None:
    query = random(5, kv_heads, group, 16)
    keys = random(5, 48, kv_heads, 16).transpose(1, 2)[:, :, :40]
    values = random(5, 49, kv_heads, 12).transpose(1, 2)[:, :, :40]
    mask = torch.zeros(5, 1, 1, 40)
    for row, length in enumerate((40, 1, 17, 39, 5)):
        mask[row, ..., length:] = -torch.inf
    wanted = scaled_dot_product_attention(query.float(), keys.float(), values.float(), mask, scale=SCALE)
    out = attend_decodes(query, keys, values, mask.bfloat16(), SCALE)
    assert float((out.float() - wanted.flatten(1, 2)).abs().max()) < TOLERANCE


@pytest.mark.parametrize("window", [None, 1, 40, 500])
@pytest.mark.parametrize(("prefix", "tokens"), [(0, 1), (0, 50), (0, 128), (0, 300), (37, 1), (16, 129), (200, 256)])
def test_a_chunk_behind_a_prefix(prefix: int, tokens: int, window: int | None) -> None:
    kv_heads, group, length = 2, 3, prefix + tokens
    query, keys, values = random(tokens, 6, 16), random(length, kv_heads, 16), random(length, kv_heads, 17)[..., :12]
    places, own = torch.arange(length), torch.arange(prefix, length)[:, None]
    visible = (places <= own) & (places > own - (window or length))
    wanted = scaled_dot_product_attention(
        query.float().transpose(0, 1),
        keys.float().transpose(0, 1).repeat_interleave(group, 0),
        values.float().transpose(0, 1).repeat_interleave(group, 0),
        visible,
        scale=SCALE,
    ).transpose(0, 1)
    out = attend_chunk(query, keys.transpose(0, 1), values.transpose(0, 1), SCALE, window)
    assert float((out.float() - wanted).abs().max()) < TOLERANCE
