"""The interface through which the core reaches whatever computes: a step is launch, sample, read.

    batch = scheduler.schedule()
    forward = runner.launch(batch)              # starts the forward pass; may return before it is done
    mask = grammar rows filled for this batch   # on the CPU, while the forward runs
    pending = runner.sample(forward, mask)      # queues sampling behind the forward
    sampled = runner.read(pending)              # waits, and brings the tokens to the host

A runner that runs ahead gets the next step before this one is read: where a sequence's last token is `UNKNOWN_TOKEN`,
it takes the one that it drew for that sequence in the step before. Sequences may have finished and lost their blocks
between `launch` and `sample`; what is drawn for them nobody reads.

`launch` and `sample` may raise `OutOfMemoryError`. The batch then counts as not launched, and a smaller one may follow
at once: whatever of it was computed is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from engine.core.scheduler_output import SchedulerOutput


class OutOfMemoryError(Exception):
    """The device has no memory for a batch, though for a smaller one it may; nothing of it is held any more."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probability of the chosen token and the most likely alternatives, best first."""

    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True)
class SampledToken:
    """What one sampling row gave; `token_id` None means that its mask allowed nothing."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None


class Runner(Protocol):
    """Computes batches of token sequences over a paged KV cache. Used from the engine thread alone."""

    block_size: int  # tokens a KV block
    num_blocks: int  # KV blocks there are
    vocab_size: int
    max_model_len: int  # tokens a sequence may hold
    runs_ahead: bool  # whether a step may be launched before the one before it was read
    most_prompt_tokens: int | None  # in a step: more take as long in one as in two; None: as many as possible

    def launch(self, batch: SchedulerOutput) -> Any:
        """Start the forward pass of `batch`; the handle lives until it was sampled. May raise `OutOfMemoryError`."""
        ...

    def sample(self, forward: Any, bitmask: Any | None) -> Any:
        """Draw a token for each sampling row of the batch, in batch order.

        `bitmask` is int32 [sampling rows, ceil(vocab_size / 32)], bit 1 = allowed (rows without a
        constraint are all ones), or None when no row is constrained. It may be refilled after `read`.
        May raise `OutOfMemoryError`; the batch has to be launched again then.
        """
        ...

    def read(self, pending: Any) -> list[SampledToken]:
        """Wait for the drawn tokens: one entry per sampling row, in batch order."""
        ...

    def close(self) -> None:
        """Release device memory. Idempotent."""
        ...
