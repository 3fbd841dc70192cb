"""The RMS norm of a layer, with its weight."""

from __future__ import annotations

import torch
from torch.nn.functional import rms_norm


class RmsNorm:
    """x `[..., D]` -> x / rms(x) * weight."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight, self._shape, self._eps = weight, weight.shape, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self._shape, self._weight, self._eps)
