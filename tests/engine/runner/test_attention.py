"""Chunks behind a prefix without a mask, as GPUs compute them, against the masks of everywhere else."""

from __future__ import annotations

import pytest
import torch

from engine.core.scheduler_output import SchedulerOutput
from engine.runner import forward_batch
from engine.runner.attention import continues_without_mask
from engine.runner.forward_batch import BatchBuilder
from engine.runner.kv_cache import KVCache
from engine.runner.kv_shape import KVShape
from tests.engine.runner.kernels.test_cuda_attention import BLOCK_SIZE, NUM_BLOCKS, items_of, random

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("group", "value_dim"), [(1, 64), (4, 64), (1, 48)])
@pytest.mark.parametrize("new_tokens", [2, 16, 39])
def test_the_last_tokens_of_a_context_see_all_before_them(
    monkeypatch: pytest.MonkeyPatch, group: int, value_dim: int, new_tokens: int
) -> None:
    shape, batch = KVShape(1, 2, 64, torch.float32), SchedulerOutput(items_of([40], [new_tokens]))
    cache = KVCache(shape, NUM_BLOCKS, BLOCK_SIZE, CPU).layers[0]
    cache.keys.copy_(random(*cache.keys.shape, dtype=torch.float32, seed=2))
    query = random(new_tokens, 2 * group, 64, dtype=torch.float32, seed=3)
    own = torch.zeros(new_tokens, 2, 64)  # not looked at: what is cached counts
    results = []
    for without_mask in (True, False):
        monkeypatch.setattr(forward_batch, "continues_without_mask", lambda *_, answer=without_mask: answer)
        (part,) = BatchBuilder(BLOCK_SIZE, group, torch.float32, CPU).build(batch).parts[None]
        keys, _ = part.context(own, own, cache)
        results.append(part.attend(query, keys, keys[..., :value_dim], 0.125))
    assert results[0].shape == (new_tokens, 2 * group, value_dim)
    torch.testing.assert_close(*results)


def test_a_mask_is_made_where_the_kernels_of_torch_need_one() -> None:
    assert continues_without_mask(GPU, torch.bfloat16, None)
    assert continues_without_mask(CPU, torch.bfloat16, 16)
    assert not continues_without_mask(GPU, torch.bfloat16, 16)
    assert not continues_without_mask(GPU, torch.float32, None)
    assert not continues_without_mask(CPU, torch.float32, None)
