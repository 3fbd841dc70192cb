"""The gated MLP: down(silu(gate(x)) * up(x)), with gate and up as one product."""

from __future__ import annotations

import torch

from engine.runner.linear import make_gate_up, make_linear
from engine.runner.weights.checkpoint import Checkpoint


class GatedMlp:
    """An MLP with its weights."""

    def __init__(self, checkpoint: Checkpoint, prefix: str) -> None:
        gate_up, down = [f"{prefix}gate_proj", f"{prefix}up_proj"], f"{prefix}down_proj"
        self._gate_up = make_gate_up(checkpoint.take_weights(*gate_up), checkpoint.take_biases(*gate_up))
        self._down = make_linear(checkpoint.take_weights(down), checkpoint.take_biases(down))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + MLP(x), all `[T, H]`."""
        return self._down.add(self._gate_up(x), residual)
