"""The experts of a few tokens as two launches, without the host: which experts have work is known on the GPU alone.

The host would wait for the numbers of rows, and a graph could not be captured. The library's grouped products need a
GPU of compute capability 9 or 10 for that; these kernels do not, and add up a token's results in one order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from engine.runner.kernels.cuda_path import complaint
from engine.runner.kernels.cuda_sources import Launcher, experts
from engine.runner.models.experts import Experts, by_torch

_THREADS, _PIECE = 128, 8
_GATED_COLUMNS, _COLUMNS = 8, 16  # of the result, that a block computes
_TOLERANCE = 0.05
_DTYPES = (torch.bfloat16, torch.float16)


class KernelExperts:
    """Implements `FewRows` for numbers of `dtype`; steps of more than `most_rows` tokens are better left to torch."""

    def __init__(self, launcher: Launcher, dtype: torch.dtype, most_rows: int) -> None:
        self.most_rows = most_rows
        self._launcher, self._source = launcher, experts(dtype)

    def compute(self, x: torch.Tensor, chosen: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        """`x` `[T, H]` through the experts `chosen` int64 `[T, K]`; what each makes of its row, `[T * K, H]`.

        `gate_up` are `[E, 2 * I, H]`, `down` `[E, H, I]`.
        """
        (number, hidden, inner), device = down.shape, x.device
        by_expert, order = chosen.flatten().sort(stable=True)
        each = torch.arange(number + 1, device=device)
        starts = torch.searchsorted(by_expert, each, out_int32=True)  # int32 [E + 1]
        named = by_expert if len(order) < number else each[:-1]
        places = (named, starts, order, np.int32(chosen.shape[1]))
        inside = x.new_empty(len(order), inner)
        grid = (-(-inner // _GATED_COLUMNS), len(named), 1)
        arguments = (inside, x.contiguous(), gate_up, np.int32(hidden), np.int32(inner), *places)
        self._launcher.launch(self._source, "multiply_gated", grid, _THREADS, arguments)
        out = x.new_empty(len(order), hidden)
        grid = (-(-hidden // _COLUMNS), len(named), 1)
        arguments = (out, inside, down, np.int32(inner), np.int32(hidden), *places)
        self._launcher.launch(self._source, "multiply", grid, _THREADS, arguments)
        return out


def open_experts(layers: list[Experts], launcher: Launcher | None, most_rows: int, say: Callable[[str], None]) -> None:
    """Have the kernel compute the experts of up to `most_rows` tokens, if it can and proves itself. Says who does."""
    if not layers:
        return
    reason = "the GPU kernels cannot be used here" if launcher is None else _why_not(layers[0])
    if launcher is not None and reason is None:
        kernel = KernelExperts(launcher, layers[0].down.dtype, most_rows)
        trouble = complaint(lambda: computes_alike(kernel, layers[0].down.dtype, layers[0].down.device))
        if trouble is None:
            for layer in layers:
                layer.few_rows = kernel
            say(f"experts: by the kernel for up to {most_rows} tokens a step, else by torch")
            return
        reason = f"the kernel is not used, as {trouble}"
    say(f"experts: by torch; {reason}")


@torch.inference_mode()
def computes_alike(kernel: KernelExperts, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a few rows come out of a few experts as torch computes them."""
    random = torch.Generator().manual_seed(0)
    tokens, number, chosen, hidden, inner = 11, 5, 2, 64, 40
    x, gate_up, down = (
        torch.randn(size, generator=random).to(device, dtype)
        for size in ((tokens, hidden), (number, 2 * inner, hidden), (number, hidden, inner))
    )
    gate_up.mul_(hidden**-0.5)
    down.mul_(inner**-0.5)
    experts = torch.rand(tokens, number, generator=random).topk(chosen).indices.to(device)
    ours, expected = (compute(x, experts, gate_up, down) for compute in (kernel.compute, by_torch))
    return torch.allclose(ours, expected, rtol=_TOLERANCE, atol=_TOLERANCE)


def _why_not(layer: Experts) -> str | None:
    """What keeps a model from the kernel, in a few words; None where nothing does."""
    _, hidden, inner = layer.down.shape
    if layer.down.dtype not in _DTYPES:
        return f"the kernel does not know {str(layer.down.dtype).removeprefix('torch.')}"
    if hidden % _PIECE or inner % _PIECE:
        return f"the kernel does not know experts of {inner} over {hidden}"
    return None
