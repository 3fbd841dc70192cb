"""What of a step runs on the CUDA kernels, and lines that say so, or why not.

Kernels prove themselves at start, on the GPU that they will run on: a small case of each is compared with what torch
makes of it. One that fails is not used.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import Sequence
from engine.runner.forward_batch import BatchBuilder
from engine.runner.kernels.cuda_attention import PagedAttention, why_not
from engine.runner.kernels.cuda_library import open_launcher
from engine.runner.kernels.cuda_sampler import CudaSampler
from engine.runner.kernels.cuda_sources import Launcher
from engine.runner.kv_cache import KVCache, KVShape
from engine.runner.sampler import Sampler

Say = Callable[[str], None]
_VOCAB_SIZE, _TOLERANCE = 3000, 0.05
_SETTINGS = (
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(top_k=20, repetition_penalty=1.2),
    SamplingParams(temperature=0.7, top_p=0.9, min_p=0.01),
)


def open_kernels(device: torch.device, say: Say) -> Launcher | None:
    """A launcher whose sampler gives what the tensors' gives on `device`; None where torch has to do."""
    launcher = open_launcher(device, say)
    if launcher is None:
        return None
    reason = _complaint(lambda: draws_alike(launcher, device))
    if reason is None:
        return launcher
    say(f"GPU kernels: {reason}; sampling and attention by torch, which is slower")
    return None


def open_paged_attention(
    launcher: Launcher | None, shape: KVShape, group: int, device: torch.device, say: Say
) -> PagedAttention | None:
    """Attention of decodes by the kernel; None, for gathers, without a launcher or for shapes that it does not know."""
    if launcher is None:
        return None
    reason = why_not(shape, group)
    if reason is not None:
        say(f"GPU kernels: sampling; attention by gathers, as the kernel does not know {reason}")
        return None
    paged = PagedAttention(launcher, shape, group)
    reason = _complaint(lambda: attends_alike(paged, shape, group, device))
    if reason is not None:
        say(f"GPU kernels: sampling; attention by gathers, as of the kernel {reason}")
        return None
    say("GPU kernels: sampling, attention of decodes")
    return paged


@torch.inference_mode()
def draws_alike(launcher: Launcher, device: torch.device) -> bool:
    """Whether a few rows are drawn as the tensors draw them."""
    items = [_decode(row, 5, setting) for row, setting in enumerate(_SETTINGS)]
    logits = torch.randn(len(items), _VOCAB_SIZE, generator=torch.Generator().manual_seed(0)).mul_(3).to(device)
    ours = CudaSampler(_VOCAB_SIZE, launcher).sample(logits.clone(), items, None).token_ids
    return torch.equal(ours, Sampler(_VOCAB_SIZE).sample(logits, items, None).token_ids)


@torch.inference_mode()
def attends_alike(paged: PagedAttention, shape: KVShape, group: int, device: torch.device) -> bool:
    """Whether a few decodes attend as they do over gathered blocks."""
    block_size, lengths = 16, (1, 16, 70)
    one_layer = KVShape(1, shape.num_kv_heads, shape.head_dim, shape.dtype)
    cache = KVCache(one_layer, 8, block_size, device).layers[0]
    cache.keys.normal_()
    cache.values.normal_()
    batch = SchedulerOutput([_decode(row, length, _SETTINGS[0]) for row, length in enumerate(lengths)])
    for item, blocks in zip(batch.scheduled, ([7], [2], [5, 0, 3, 6, 1]), strict=True):
        item.sequence.block_table = blocks
    heads = (shape.num_kv_heads * group, shape.num_kv_heads, shape.num_kv_heads)
    query, key, value = (
        torch.randn(len(lengths), number, shape.head_dim, dtype=shape.dtype, device=device) for number in heads
    )
    ours, expected = (
        BatchBuilder(block_size, group, shape.dtype, device, (None,), kernel)
        .build(batch)
        .attend(query, key, value, cache, shape.head_dim**-0.5)
        for kernel in (paged, None)
    )
    return torch.allclose(ours, expected, rtol=_TOLERANCE, atol=_TOLERANCE)


def _decode(row: int, length: int, params: SamplingParams) -> ScheduledSequence:
    sequence = Sequence(f"proof-{row}", [row] * length, 1, params, row, frozenset(), length + 1, row)
    return ScheduledSequence(sequence, length - 1, 1, True)


def _complaint(proof: Callable[[], bool]) -> str | None:
    """Why a kernel that is tried by `proof` must not be used."""
    try:
        return None if proof() else "the results differ from torch's"
    except Exception as problem:  # cupy, the compiler and the driver each have their own
        return f"a launch fails: {(str(problem).splitlines() or ['no reason given'])[0]}"
