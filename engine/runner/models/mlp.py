"""The gated MLP: down(silu(gate(x)) * up(x)), with gate and up as one product."""

from __future__ import annotations

import torch

from engine.runner.linear import make_gate_up, make_linear
from engine.runner.weights.checkpoint import Checkpoint, Shapes


def mlp_shapes(prefix: str, hidden_size: int, intermediate_size: int, bias: bool) -> Shapes:
    """The tensors of an MLP, by name."""
    sizes = {
        "gate_proj": (intermediate_size, hidden_size),
        "up_proj": (intermediate_size, hidden_size),
        "down_proj": (hidden_size, intermediate_size),
    }
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}{name}.weight": size for name, size in sizes.items()}
    if bias:
        shapes |= {f"{prefix}{name}.bias": size[:1] for name, size in sizes.items()}
    return shapes


class GatedMlp:
    """An MLP with its weights."""

    def __init__(self, checkpoint: Checkpoint, prefix: str) -> None:
        gate_up, down = [f"{prefix}gate_proj", f"{prefix}up_proj"], f"{prefix}down_proj"
        self._gate_up = make_gate_up(checkpoint.take_weights(*gate_up), checkpoint.take_biases(*gate_up))
        self._down = make_linear(checkpoint.take_weights(down), checkpoint.take_biases(down))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + MLP(x), all `[T, H]`."""
        return self._down.add(self._gate_up(x), residual)
