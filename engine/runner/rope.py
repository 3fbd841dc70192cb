"""Rotary position embedding: tables of cosines and sines, and their application to all heads at once.

The half-split form: element i of a head turns with element i + head_dim / 2. The sign of the rotated half lives in the
sine table, so that one roll serves both halves.
"""

from __future__ import annotations

import torch

RopeTables = tuple[torch.Tensor, torch.Tensor]
"""Cosines and signed sines of a batch's positions, each `[T, 1, D]`."""


class Rope:
    """Turns queries and keys by their positions; tables for positions below `max_positions`.

    What is turned grows by `magnitude`.
    """

    def __init__(
        self,
        frequencies: torch.Tensor,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device | str,
        magnitude: float = 1.0,
    ) -> None:
        angles = torch.outer(torch.arange(max_positions).float(), frequencies)  # [P, D / 2]
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        self._half = frequencies.shape[0]
        self._cos = torch.cat((cos, cos), -1).to(device, dtype)  # [P, D]
        self._sin = torch.cat((-sin, sin), -1).to(device, dtype)

    def tables(self, positions: torch.Tensor) -> RopeTables:
        """Cosines and signed sines of `positions` `[T]`, each `[T, 1, D]`, shared by all layers."""
        return self._cos.index_select(0, positions).unsqueeze(1), self._sin.index_select(0, positions).unsqueeze(1)

    def apply(self, x: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        """Turn the heads `x` `[T, heads, D]`."""
        cos, sin = tables
        return torch.addcmul(x * cos, x.roll(self._half, -1), sin)
