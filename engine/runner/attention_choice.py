"""Who computes attention on a GPU, as `--attention` says, and a line that says who does.

auto          flashinfer where it is installed, else the kernel, else SDPA
kernel        decodes by the kernel of this program, prefills by SDPA
flashinfer    both by the library
sdpa          blocks are gathered, and torch's scaled dot products do the rest

What computes on blocks where they lie proves itself first: a small batch is compared with what SDPA makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch

from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import Sequence
from engine.runner import flashinfer_attention
from engine.runner.flashinfer_attention import FlashInferAttention
from engine.runner.forward_batch import BatchBuilder, ForwardBatch
from engine.runner.kernels import cuda_attention
from engine.runner.kernels.cuda_attention import KernelAttention
from engine.runner.kernels.cuda_path import complaint
from engine.runner.kernels.cuda_sources import Launcher
from engine.runner.kv_cache import KVCache, LayerCache
from engine.runner.kv_shape import KVShape
from engine.runner.paged_attention import PagedAttention
from engine.runner.weights.errors import ModelLoadError

_TOLERANCE = 0.05
_CHUNKS = ((0, 40), (35, 20))  # first token and number of tokens of the chunks that are tried
_DECODES = (1, 16, 70)  # and the lengths of sequences with one new token
_LATENT_HEADS = 12  # that share latent vectors, of which decodes alone are computed where they lie
_CANDIDATES = {"auto": ("flashinfer", "kernel"), "kernel": ("kernel",), "flashinfer": ("flashinfer",), "sdpa": ()}


class _Unusable(Exception):
    """Why one of them cannot be used here; `is_absent` where it was never there, which nobody has to be told."""

    def __init__(self, reason: str, *, is_absent: bool = False) -> None:
        super().__init__(reason)
        self.is_absent = is_absent


@dataclass(frozen=True, slots=True)
class Wanted:
    """For what attention is wanted: a model's cache, with `group` query heads a KV head."""

    shape: KVShape
    group: int
    block_size: int
    device: torch.device


def check_choice(choice: str, device: torch.device) -> None:
    """Raises `ModelLoadError` for a choice where there is none."""
    if device.type != "cuda" and choice != "auto":
        raise ModelLoadError(f"--attention {choice}: there is a choice on an NVIDIA GPU alone, not on the CPU")


def open_attention(
    choice: str, launcher: Launcher | None, wanted: Wanted, say: Callable[[str], None]
) -> PagedAttention | None:
    """What computes attention, of those that `choice` allows; None for SDPA. Says which.

    Raises `ModelLoadError`, which names the option, when what was asked for cannot be used.
    """
    if wanted.device.type != "cuda":
        return None
    reasons = []
    for name in _CANDIDATES[choice]:
        if name == "flashinfer" and find_spec(name) is not None:
            say("attention: trying flashinfer, which compiles kernels that it has not kept from an earlier start")
        try:
            attention = _OPENERS[name](launcher, wanted)
        except _Unusable as problem:
            if choice == name:
                raise ModelLoadError(f"--attention {name}: {problem}") from problem
            reasons += [] if problem.is_absent else [str(problem)]
        else:
            say(f"attention: {attention.description}" + "".join(f"; {reason}" for reason in reasons))
            return attention
    say("attention: SDPA over gathered blocks" + "".join(f"; {reason}" for reason in reasons))
    return None


def _open_kernel(launcher: Launcher | None, wanted: Wanted) -> PagedAttention:
    if launcher is None:
        raise _Unusable("the GPU kernels cannot be used here")
    if unknown := cuda_attention.why_not(wanted.shape, wanted.group):
        raise _Unusable(f"the kernel does not know {unknown}")
    attention = KernelAttention(launcher, wanted.shape, wanted.group, wanted.device)
    return _proven(attention, "the kernel", wanted)


def _open_flashinfer(launcher: Launcher | None, wanted: Wanted) -> PagedAttention:
    try:
        import flashinfer
    except ModuleNotFoundError as problem:
        is_absent = problem.name == "flashinfer"
        hint = " (pip install flashinfer-python)" if is_absent else ""
        raise _Unusable(f"flashinfer is not installed: {problem}{hint}", is_absent=is_absent) from problem
    except Exception as problem:  # it looks for compilers and drivers when it is imported
        raise _Unusable(f"flashinfer cannot be imported: {_first_line(problem)}") from problem
    if unknown := flashinfer_attention.why_not(wanted.shape):
        raise _Unusable(f"flashinfer is not used for {unknown}")
    attention = FlashInferAttention(flashinfer, wanted.shape, wanted.group, wanted.block_size, wanted.device)
    return _proven(attention, "flashinfer", wanted)


_OPENERS = {"kernel": _open_kernel, "flashinfer": _open_flashinfer}


def _proven(attention: PagedAttention, name: str, wanted: Wanted) -> PagedAttention:
    if reason := complaint(lambda: attends_alike(attention, wanted)):
        raise _Unusable(f"{name} is not used, as {reason}")
    return attention


@torch.inference_mode()
def attends_alike(attention: PagedAttention, wanted: Wanted) -> bool:
    """Whether a few decodes and chunks attend as they do over gathered blocks; of latent vectors decodes alone."""
    shape, block_size, device = replace(wanted.shape, num_layers=1), wanted.block_size, wanted.device
    is_latent = shape.values_in_keys is not None
    blocks = iter(torch.randperm(_blocks_needed(block_size), generator=torch.Generator().manual_seed(0)).tolist())
    chunks = [] if is_latent else [_item(*chunk) for chunk in _CHUNKS]
    batch = SchedulerOutput([*(_item(length - 1, 1) for length in _DECODES), *chunks])
    for item in batch.scheduled:
        item.sequence.block_table = [next(blocks) for _ in range(-(-item.sequence.num_tokens // block_size))]
    cache = KVCache(shape, _blocks_needed(block_size), block_size, device).layers[0]
    cache.keys.normal_()
    cache.values.normal_()
    heads = (_LATENT_HEADS if is_latent else shape.num_kv_heads * wanted.group, shape.num_kv_heads, shape.num_kv_heads)
    query, key, value = (
        torch.randn(batch.num_batched_tokens, number, shape.head_dim, dtype=shape.dtype, device=device)
        for number in heads
    )
    results = []
    for paged in (attention, None):
        built = BatchBuilder(block_size, wanted.group, shape.dtype, device, (None,), paged).build(batch)
        cache.write(built.slots, key, value)
        results.append(attended(built, query, key, value, cache, shape))
    ours, expected = results
    return torch.allclose(ours, expected, rtol=_TOLERANCE, atol=_TOLERANCE)


def attended(
    batch: ForwardBatch,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache: LayerCache,
    shape: KVShape,
) -> torch.Tensor:
    """Attention of all rows of `batch`, as `ForwardBatch.attend`, but also over latent vectors; `[T, heads, D]`."""
    out = query.new_empty(*query.shape[:2], shape.values_in_keys or shape.head_dim)
    for part in batch.parts[None]:
        rows, scale = part.rows, shape.head_dim**-0.5
        out[rows] = part.attend(query[rows], *part.context(key[rows], value[rows], cache), scale)
    return out


def _blocks_needed(block_size: int) -> int:
    lengths = (*_DECODES, *(start + number for start, number in _CHUNKS))
    return sum(-(-length // block_size) for length in lengths)


def _item(start: int, number: int) -> ScheduledSequence:
    length = start + number
    sequence = Sequence("proof", [0] * length, length, SamplingParams(), 0, frozenset(), length + 1, 0)
    return ScheduledSequence(sequence, start, number, True)


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]
