"""Whether the CUDA kernels of this program can be used, and a line that says why not.

The sampler proves itself at start, on the GPU that it will run on: a small case is compared with what torch makes of
it. With a difference, no kernel is used.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence
from engine.core.sequence import Sequence
from engine.runner.kernels.cuda_library import open_launcher
from engine.runner.kernels.cuda_masks import CudaLane
from engine.runner.kernels.cuda_sampler import CudaSampler
from engine.runner.kernels.cuda_sources import Launcher
from engine.runner.sampler import Sampler

Say = Callable[[str], None]
_VOCAB_SIZE = 3000
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
    reason = complaint(lambda: draws_alike(launcher, device))
    if reason is None:
        say("GPU kernels: sampling by the kernel")
        return launcher
    say(f"GPU kernels: {reason}; torch does their work, which is slower")
    return None


@torch.inference_mode()
def draws_alike(launcher: Launcher, device: torch.device) -> bool:
    """Whether a few rows are drawn as the tensors draw them, with masks and without."""
    items = [_decode(row, 5, setting) for row, setting in enumerate(_SETTINGS)]
    logits = torch.randn(len(items), _VOCAB_SIZE, generator=torch.Generator().manual_seed(0)).mul_(3).to(device)
    masks = np.random.default_rng(0).integers(-(2**31), 2**31, (len(items), -(-_VOCAB_SIZE // 32)), np.int32)
    kernel = CudaSampler(_VOCAB_SIZE, launcher, CudaLane(device) if device.type == "cuda" else None)
    for mask in (None, masks, ~masks, masks):
        ours = kernel.sample(logits.clone(), items, mask).token_ids
        if not torch.equal(ours, Sampler(_VOCAB_SIZE).sample(logits.clone(), items, mask).token_ids):
            return False
    return True


def _decode(row: int, length: int, params: SamplingParams) -> ScheduledSequence:
    sequence = Sequence(f"proof-{row}", [row] * length, 1, params, row, frozenset(), length + 1, row)
    return ScheduledSequence(sequence, length - 1, 1, True)


def complaint(proof: Callable[[], bool]) -> str | None:
    """Why a kernel that is tried by `proof` must not be used."""
    try:
        return None if proof() else "the results differ from torch's"
    except Exception as problem:  # cupy, the compiler and the driver each have their own
        return f"a launch fails: {(str(problem).splitlines() or ['no reason given'])[0]}"
