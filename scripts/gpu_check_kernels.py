"""The checks of gpu_check.py that compare kernels with what torch makes of the same."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.runner.attention_choice import attended
from engine.runner.device import to_device
from engine.runner.flashinfer_attention import FlashInferAttention
from engine.runner.forward_batch import BatchBuilder
from engine.runner.kernels.cuda_attention import KernelAttention
from engine.runner.kernels.cuda_experts import KernelExperts
from engine.runner.kernels.cuda_masks import CudaLane
from engine.runner.kernels.cuda_sampler import CudaSampler, apply_bitmask
from engine.runner.kv_cache import KVCache
from engine.runner.kv_shape import KVShape
from engine.runner.logit_edits import mask_disallowed
from engine.runner.models.experts import by_torch
from engine.runner.paged_attention import PagedAttention
from engine.runner.sampler import Sampler
from scripts.gpu_check_place import GREEDY, Failed, Place, make_sequence

DECODES, CHUNKS = (1, 17, 500, 4097, 9000), ((0, 300), (2000, 300), (33, 2))  # lengths; first tokens and numbers
# Heads of so many numbers, query heads a KV head, numbers.
SHAPES_TRIED = ((128, 4, torch.bfloat16), (64, 8, torch.float16), (128, 7, torch.float16), (96, 1, torch.bfloat16))
Shapes = Sequence[tuple[KVShape, int]]
LATENT_TRIED: Shapes = [(KVShape(1, 1, 576, dtype, 512), 1) for dtype in (torch.bfloat16, torch.float16)]
VOCAB, ROWS, ROUNDS = 128256, 250, 40  # of the draws that are compared
EXPERTS_TRIED, TOKENS_TRIED = (64, 6, 2048, 1408), (1, 7, 64, 256)  # how many, how many chosen, widths; tokens
_BLOCK_SIZE, _NUM_BLOCKS, _LATENT_HEADS = 16, 2048, 16


def check_sampler(place: Place) -> str:
    """The sampling kernel draws what the tensors draw, but for rounding."""
    vocab, rows, rounds = VOCAB, ROWS, ROUNDS
    kernel, tensors = CudaSampler(vocab, place.launcher, CudaLane(place.device)), Sampler(vocab)
    settings = [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.95),
        SamplingParams(top_k=50),
        SamplingParams(min_p=0.02, repetition_penalty=1.2, logit_bias={5: 2.0}),
        GREEDY,
    ]
    differing = 0
    for turn in range(rounds):
        logits = torch.randn(rows, vocab, device=place.device) * 3
        mask = random_mask(turn, rows, vocab)
        sequences = [make_sequence(turn * rows + row, 4, settings[row % len(settings)]) for row in range(rows)]
        items = [ScheduledSequence(sequence, 3, 1, True) for sequence in sequences]
        ours = kernel.sample(logits.clone(), items, mask).token_ids
        differing += int((ours != tensors.sample(logits, items, mask).token_ids).sum())
    found = f"{differing} of {rows * rounds:,} draws differ"
    if differing > rows * rounds / 10_000:
        raise Failed(found)
    return found


def check_bitmask(place: Place) -> str:
    """The kernel that applies masks hides what torch hides."""
    launcher, logits = place.launcher, torch.randn(ROWS, VOCAB - 3, device=place.device)
    mask = random_mask(0, *logits.shape)
    expected = logits.clone()
    mask_disallowed(expected, mask)
    apply_bitmask(launcher, logits, to_device(mask, place.device))
    if not torch.equal(logits, expected):
        raise Failed("the logits differ")
    return f"{ROWS} rows of {VOCAB - 3:,}, all equal"


def random_mask(seed: int, rows: int, vocab: int) -> Any:
    return np.random.default_rng(seed).integers(-(2**31), 2**31, (rows, -(-vocab // 32)), np.int32)


def check_experts(place: Place) -> str:
    """The kernel of experts against products of torch, of few tokens and of many."""
    launcher, worst = place.launcher, 0.0
    count, chosen, hidden, inner = EXPERTS_TRIED
    for dtype in (torch.bfloat16, torch.float16):
        kernel = KernelExperts(launcher, dtype, max(TOKENS_TRIED))
        gate_up = torch.randn(count, 2 * inner, hidden, device=place.device, dtype=dtype) * hidden**-0.5
        down = torch.randn(count, hidden, inner, device=place.device, dtype=dtype) * inner**-0.5
        for tokens in TOKENS_TRIED:
            x = torch.randn(tokens, hidden, device=place.device, dtype=dtype)
            experts = torch.rand(tokens, count, device=place.device).topk(chosen).indices
            ours = kernel.compute(x, experts, gate_up, down).float()
            exact = by_torch(x.float(), experts, gate_up.float(), down.float())
            worst = max(worst, float(((ours - exact).abs() / (1 + exact.abs())).max()))
    found = f"largest difference {worst:.4f}"
    if not worst < 0.02:
        raise Failed(found)
    return found


def check_attention(place: Place) -> str:
    """The attention kernel for decodes, and SDPA for chunks beside them, against gathers in float32."""
    launcher = place.launcher
    return _within(place, lambda shape, group: KernelAttention(launcher, shape, group, place.device), LATENT_TRIED)


def check_flashinfer(place: Place) -> str:
    """The same of flashinfer, decodes and chunks."""
    library = importlib.import_module("flashinfer")
    return _within(place, lambda shape, group: FlashInferAttention(library, shape, group, _BLOCK_SIZE, place.device))


def _within(place: Place, make: Callable[[KVShape, int], PagedAttention], others: Shapes = ()) -> str:
    shapes = [*((KVShape(1, 8, head_dim, dtype), group) for head_dim, group, dtype in SHAPES_TRIED), *others]
    worst = max(attention_error(place, make(shape, group), shape, group) for shape, group in shapes)
    found = f"largest difference {worst:.4f}"
    if not worst < 0.02:
        raise Failed(found)
    return found


@torch.inference_mode()
def attention_error(place: Place, paged: PagedAttention, shape: KVShape, group: int) -> float:
    """The largest difference from what gathers and masks give in float32, relative to 1 and more."""
    exact = replace(shape, dtype=torch.float32)
    caches = [KVCache(each, _NUM_BLOCKS, _BLOCK_SIZE, place.device).layers[0] for each in (shape, exact)]
    caches[0].keys.normal_()
    caches[0].values.normal_()
    blocks = iter(torch.randperm(_NUM_BLOCKS).tolist())
    items = []
    is_latent = shape.values_in_keys is not None  # of which decodes alone are computed where they lie
    for number, (start, new) in enumerate([*((length - 1, 1) for length in DECODES), *(() if is_latent else CHUNKS)]):
        sequence = make_sequence(number, start + new)
        sequence.block_table = [next(blocks) for _ in range(-(-sequence.num_tokens // _BLOCK_SIZE))]
        items.append(ScheduledSequence(sequence, start, new, True))
    batch = SchedulerOutput(items)
    kv_heads, head_dim, dtype = shape.num_kv_heads, shape.head_dim, shape.dtype
    heads = (_LATENT_HEADS if is_latent else kv_heads * group, kv_heads, kv_heads)
    query, key, value = (
        torch.randn(batch.num_batched_tokens, number, head_dim, dtype=dtype, device=place.device) for number in heads
    )
    ours = BatchBuilder(_BLOCK_SIZE, group, dtype, place.device, (None,), paged).build(batch)
    plain = BatchBuilder(_BLOCK_SIZE, group, torch.float32, place.device).build(batch)
    caches[0].write(ours.slots, key, value)
    caches[1].keys.copy_(caches[0].keys)
    caches[1].values.copy_(caches[0].values)
    out = attended(ours, query, key, value, caches[0], shape)
    expected = attended(plain, query.float(), key.float(), value.float(), caches[1], exact)
    return float(((out.float() - expected).abs() / (1 + expected.abs())).max())
