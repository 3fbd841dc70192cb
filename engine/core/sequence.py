"""A sequence: one request inside the engine, from its arrival to its last token.

The scheduler moves it between waiting and running, the block manager owns `block_table`, the runner reads the
token IDs and keeps what it needs between steps in `sampler_state`. Two counters say where it stands:

    token_ids   [ prompt .......................... | completion ..... ]
                [ num_cached | computed this life ...... | to compute  ]
                             num_computed_tokens ^          num_tokens ^

When `num_computed_tokens` reaches `num_tokens`, the logits of the last token give the next one. Once it was drawn and
until it was read, it is there as `UNKNOWN_TOKEN`; the next step may be launched all the same. Tokens that a grammar
forces behind a drawn one come with it, and are computed with it. Preemption sets the counter back to zero and keeps the
tokens: the sequence is prefilled again, prompt and completion alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from engine.core.grammar import GrammarMatcher
from engine.core.sampling_params import SamplingParams

UNKNOWN_TOKEN = -1
"""In place of the last token of a sequence while only the runner knows it."""


class SequenceStatus(Enum):
    """Where a sequence is; FINISHED is final."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's tokens, blocks and standing. Owned by the engine thread; compared by identity.

    `seed` is the resolved one: never None. `stop_ids` holds the tokens that end the sequence (the model's EOS tokens
    unless ignored, and the request's own). `max_length` is the number of tokens, prompt included, at which it ends.
    A lower `priority` runs first, then a lower `arrival`. `deadline` is in `time.monotonic()` seconds.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    max_length: int
    arrival: int
    priority: int = 0
    deadline: float | None = None
    stream: bool = True
    cache_salt: bytes = b""
    matcher: GrammarMatcher | None = None

    is_plain_greedy: bool = field(init=False)  # as its settings say: looked up in every step
    status: SequenceStatus = SequenceStatus.WAITING
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)  # chained, of as many full blocks as were asked for
    num_forced_tokens: int = 0  # trailing tokens that the grammar left no choice about
    num_published_blocks: int = 0  # leading blocks of `block_table` that are in the prefix cache
    num_computed_tokens: int = 0  # tokens whose KV is in the blocks
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache at the first admission
    num_preemptions: int = 0
    sampler_state: Any = None  # the runner's own, dropped with the sequence

    queued_at: float = 0.0  # monotonic seconds, like the two below
    scheduled_at: float | None = None
    first_token_at: float | None = None

    def __post_init__(self) -> None:
        self.is_plain_greedy = self.sampling_params.is_plain_greedy

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_completion_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """How many tokens still need a forward pass: one in decode, and those forced behind it; more in prefill."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether the next step gives a token, all before the last drawn one being computed."""
        return self.num_uncomputed_tokens <= 1 + self.num_forced_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def completion_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def order(self) -> tuple[int, int]:
        """The place in every queue: priority, then arrival. The largest is preempted first."""
        return self.priority, self.arrival

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request_id!r}, {self.status.name}, {self.num_prompt_tokens}+{self.num_completion_tokens}"
            f" tokens, {self.num_computed_tokens} computed)"
        )
