"""The attention kernel, run on the CPU, against gathers and scaled dot products, inside whole batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.runner.attention_choice import attended
from engine.runner.forward_batch import BatchBuilder
from engine.runner.kernels.cuda_attention import KernelAttention, PagedDecodePart, why_not
from engine.runner.kv_cache import KVCache, KVShape
from tests.engine.runner.driving import make_sequence
from tests.engine.runner.kernels.shim import Shim, require_cpp_compiler

CPU, BLOCK_SIZE, NUM_BLOCKS = torch.device("cpu"), 16, 64
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture
def shim(libraries: Path) -> Shim:
    require_cpp_compiler()
    return Shim(libraries)


def items_of(lengths: list[int], new_tokens: list[int] | None = None) -> list[ScheduledSequence]:
    """Sequences of these lengths, of which the last tokens are new, over scattered blocks."""
    order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(1)).tolist()
    items = []
    for length, new in zip(lengths, new_tokens or [1] * len(lengths), strict=True):
        sequence = make_sequence([0] * length)
        sequence.block_table = [order.pop() for _ in range(-(-length // BLOCK_SIZE))]
        items.append(ScheduledSequence(sequence, length - new, new, True))
    return items


def random(*size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(
    shim: Shim,
    items: list[ScheduledSequence],
    *,
    head_dim: int = 64,
    kv_heads: int = 2,
    group: int = 3,
    dtype: torch.dtype = torch.bfloat16,
    window: int | None = None,
) -> None:
    """Attention over a random cache is the same with the kernel as in float32 without it."""
    shape = KVShape(1, kv_heads, head_dim, dtype)
    cache = KVCache(shape, NUM_BLOCKS, BLOCK_SIZE, CPU).layers[0]
    cache.keys.copy_(random(*cache.keys.shape, dtype=dtype, seed=2))
    cache.values.copy_(random(*cache.values.shape, dtype=dtype, seed=3))
    exact = KVCache(KVShape(1, kv_heads, head_dim, torch.float32), NUM_BLOCKS, BLOCK_SIZE, CPU).layers[0]
    tokens = sum(item.num_tokens for item in items)
    qkv = random(tokens, (group + 2) * kv_heads, head_dim, dtype=dtype, seed=4)
    query, key, value = qkv.split([group * kv_heads, kv_heads, kv_heads], dim=1)
    batch = SchedulerOutput(items)
    paged = KernelAttention(shim, shape, group, CPU)
    ours = BatchBuilder(BLOCK_SIZE, group, dtype, CPU, (window,), paged).build(batch)
    plain = BatchBuilder(BLOCK_SIZE, group, torch.float32, CPU, (window,)).build(batch)
    cache.write(ours.slots, key, value)
    exact.keys.copy_(cache.keys)
    exact.values.copy_(cache.values)
    scale = head_dim**-0.5
    out = ours.attend(query, key, value, cache, scale, window)
    expected = plain.attend(query.float(), key.float(), value.float(), exact, scale, window)
    assert isinstance(ours.parts[window][0], PagedDecodePart)
    torch.testing.assert_close(out.float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("head_dim", "group"), [(64, 1), (64, 3), (128, 4), (128, 7), (64, 16), (80, 4), (96, 1), (96, 5)]
)
def test_decodes_of_all_shapes(shim: Shim, head_dim: int, group: int, dtype: torch.dtype) -> None:
    check(shim, items_of([1, 16, 33, 100]), head_dim=head_dim, group=group, dtype=dtype)


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 511, 512])
def test_contexts_are_cut_into_parts_of_any_length(shim: Shim, length: int) -> None:
    check(shim, items_of([length]), head_dim=128, group=4)
    assert {kernel for kernel, _, _ in shim.launched} == {"attend_parts", "combine_parts"}


def test_many_sequences_fill_the_processors_without_parts(shim: Shim) -> None:
    check(shim, items_of([5, 40, 7, 90, 1, 64, 2, 33, 12]))
    assert {kernel for kernel, _, _ in shim.launched} == {"attend_parts"}


@pytest.mark.parametrize("window", [1, 8, 17, 64])
def test_a_window_hides_what_is_before_it(shim: Shim, window: int) -> None:
    check(shim, items_of([1, 16, 33, 200]), window=window)


def test_prefills_beside_decodes_are_left_to_torch(shim: Shim) -> None:
    check(shim, items_of([20, 33, 40, 50], [1, 1, 40, 30]))


def check_latent(
    shim: Shim, lengths: list[int], *, heads: int, rank: int, rope_dim: int, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Decodes over latent vectors attend as in float32 over gathered ones."""
    items = items_of(lengths)
    shape = KVShape(1, 1, rank + rope_dim, dtype, rank)
    cache = KVCache(shape, NUM_BLOCKS, BLOCK_SIZE, CPU).layers[0]
    cache.keys.copy_(random(*cache.keys.shape, dtype=dtype, seed=2))
    exact_shape = replace(shape, dtype=torch.float32)
    exact = KVCache(exact_shape, NUM_BLOCKS, BLOCK_SIZE, CPU).layers[0]
    exact.keys.copy_(cache.keys)
    query, key = (random(len(items), number, rank + rope_dim, dtype=dtype, seed=number) for number in (heads, 1))
    batch = SchedulerOutput(items)
    ours = BatchBuilder(BLOCK_SIZE, 1, dtype, CPU, (None,), KernelAttention(shim, shape, 1, CPU)).build(batch)
    plain = BatchBuilder(BLOCK_SIZE, 1, torch.float32, CPU).build(batch)
    out = attended(ours, query, key, key, cache, shape)
    expected = attended(plain, query.float(), key.float(), key.float(), exact, exact_shape)
    assert out.shape == (len(items), heads, rank)
    torch.testing.assert_close(out.float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "rank", "rope_dim"), [(16, 512, 64), (6, 24, 8), (1, 136, 16), (20, 128, 32)])
def test_decodes_over_latent_vectors_of_all_shapes(
    shim: Shim, heads: int, rank: int, rope_dim: int, dtype: torch.dtype
) -> None:
    check_latent(shim, [1, 16, 33, 100], heads=heads, rank=rank, rope_dim=rope_dim, dtype=dtype)


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 511, 512])
def test_latent_contexts_are_cut_into_parts_of_any_length(shim: Shim, length: int) -> None:
    check_latent(shim, [length], heads=8, rank=64, rope_dim=16)
    assert {kernel for kernel, _, _ in shim.launched} == {"attend_parts", "combine_parts"}


def test_threads_over_latent_vectors_may_run_in_any_order(shim: Shim) -> None:
    shim.backwards = True
    check_latent(shim, [5, 40, 7, 90, 1, 64, 2, 33, 12], heads=9, rank=64, rope_dim=16)
    check_latent(shim, [70], heads=9, rank=64, rope_dim=16)


def test_threads_may_run_in_any_order(shim: Shim) -> None:
    shim.backwards = True
    check(shim, items_of([1, 16, 33, 100]), head_dim=128, group=4)


def test_a_float32_model_names_what_keeps_it_from_the_kernel() -> None:
    bf16, f32 = torch.bfloat16, torch.float32
    assert why_not(KVShape(1, 2, 128, bf16), 8) is None
    assert why_not(KVShape(1, 2, 128, f32), 8) == "float32"
    assert why_not(KVShape(1, 2, 100, bf16), 8) == "heads of 100"
    assert why_not(KVShape(1, 1, 576, bf16, 512), 1) is None
    assert why_not(KVShape(1, 1, 576, f32, 512), 1) == "float32"
    assert why_not(KVShape(1, 1, 1088, bf16, 1024), 1) == "latent vectors of 1024 and 64"
    assert why_not(KVShape(1, 1, 28, bf16, 20), 1) == "latent vectors of 20 and 8"
    assert why_not(KVShape(1, 1, 128, bf16), 32) == "32 heads a KV head"
