"""Mixtures of experts: each token goes through a few of many MLPs, and through one that all tokens share.

The assignments of tokens to experts are sorted by expert, so that every expert that has any work does it in one pair of
products over its rows. Results go back to the order of the tokens before they are summed: a token's result does not
depend on what else is in the batch, nor on the order in which experts finish. torch needs the numbers of rows on the
host; where somebody computes few rows without them, graphs can record it.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import linear, silu

from engine.runner.models.decoder_config import ExpertsConfig
from engine.runner.models.mlp import GatedMlp
from engine.runner.models.shapes import CORRECTION, ROUTER
from engine.runner.weights.checkpoint import Checkpoint

_TINY = 1e-20


class FewRows(Protocol):
    """Computes the experts of up to `most_rows` tokens without asking the host."""

    most_rows: int

    def compute(self, x: torch.Tensor, chosen: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        """As `by_torch`."""
        ...


class Experts:
    """A layer of experts, with its weights; with `few_rows`, that computes those of few tokens."""

    def __init__(self, config: ExpertsConfig, checkpoint: Checkpoint, prefix: str) -> None:
        experts = [f"{prefix}experts.{index}." for index in range(config.count)]
        self._router = Router(config, checkpoint, prefix)
        self.few_rows: FewRows | None = None
        self.gate_up = checkpoint.take_stack([[f"{e}gate_proj.weight", f"{e}up_proj.weight"] for e in experts])
        self.down = checkpoint.take_stack([[f"{e}down_proj.weight"] for e in experts])  # [E, H, I]
        self._shared = GatedMlp(checkpoint, f"{prefix}shared_experts.") if config.shared_size else None

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + experts(x), all `[T, H]`."""
        weights, chosen = self._router.choose(x)  # [T, K]
        few = self.few_rows
        compute = by_torch if few is None or len(x) > few.most_rows else few.compute
        results = compute(x, chosen, self.gate_up, self.down)  # [T * K, H]
        mixed = (results.view(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(1).to(x.dtype)
        return (residual if self._shared is None else self._shared.forward(x, residual)) + mixed


def by_torch(x: torch.Tensor, chosen: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """`x` `[T, H]` through the experts `chosen` int64 `[T, K]`; what each makes of its row, `[T * K, H]`.

    `gate_up` are `[E, 2 * I, H]`, `down` `[E, H, I]`. Waits for the device.
    """
    order = chosen.flatten().argsort(stable=True)  # assignments, by expert
    counts = chosen.flatten().bincount(minlength=len(down)).tolist()
    rows = x.index_select(0, order // chosen.shape[1])
    out, begin = torch.empty_like(rows), 0
    for expert, count in enumerate(counts):
        if count:
            gate, up = linear(rows[begin : begin + count], gate_up[expert]).chunk(2, dim=-1)
            torch.mm(silu(gate).mul_(up), down[expert].t(), out=out[begin : begin + count])
            begin += count
    results = torch.empty_like(out)
    results[order] = out
    return results


class Router:
    """Chooses the experts of each token and weighs them, in float32."""

    def __init__(self, config: ExpertsConfig, checkpoint: Checkpoint, prefix: str) -> None:
        self._config = config
        self._weight = checkpoint.take_float(f"{prefix}{ROUTER}").to(checkpoint.device)  # [E, H]
        self._correction: torch.Tensor | None = None
        if config.corrected:
            self._correction = checkpoint.take_float(f"{prefix}{CORRECTION}").to(checkpoint.device)

    def choose(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x `[T, H]` -> weights float32 `[T, K]` and experts int64 `[T, K]`."""
        logits = linear(x.float(), self._weight)
        scores = logits.sigmoid() if self._config.scoring == "sigmoid" else logits.softmax(dim=-1)  # [T, E]
        preference = scores if self._correction is None else scores + self._correction
        if self._config.groups > 1:
            preference = self._within_groups(preference)
        chosen = preference.topk(self._config.chosen, dim=-1).indices
        weights = scores.gather(1, chosen)
        if self._config.normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(_TINY)
        return weights * self._config.scale, chosen

    def _within_groups(self, preference: torch.Tensor) -> torch.Tensor:
        """`preference` `[T, E]`, -inf outside the best groups."""
        grouped = preference.view(len(preference), self._config.groups, -1)  # [T, G, E / G]
        worth = grouped.topk(self._config.group_best, dim=-1).values.sum(dim=-1)
        best = worth.topk(self._config.chosen_groups, dim=-1).indices
        hidden = torch.ones_like(worth, dtype=torch.bool).scatter_(1, best, False)
        return grouped.masked_fill(hidden.unsqueeze(-1), -torch.inf).flatten(1)
