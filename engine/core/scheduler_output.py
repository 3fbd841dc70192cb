"""What one step computes: which tokens of which sequences, in batch order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.sequence import Sequence


@dataclass(slots=True)
class ScheduledSequence:
    """Tokens [start, start + num_tokens) of `sequence` are computed; their KV goes to its block table.

    `samples` is true when this includes the last known token, so that its logits yield the next one.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool


@dataclass(slots=True)
class SchedulerOutput:
    """One step's batch: decodes of one token, those with forced ones, prefill chunks. Valid until the next one."""

    scheduled: list[ScheduledSequence] = field(default_factory=list)

    @property
    def num_batched_tokens(self) -> int:
        return sum(item.num_tokens for item in self.scheduled)

    @property
    def sampling(self) -> list[ScheduledSequence]:
        """The rows that yield a token, in batch order."""
        return [item for item in self.scheduled if item.samples]
