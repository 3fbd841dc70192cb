"""The interface through which the core reaches compiled grammars: one matcher a sequence, one bitmask a batch.

    compiled = request.constraint.payload          # a CompiledGrammar, shared between requests
    sequence.matcher = compiled.new_matcher()      # this sequence's own place in it
    mask = filler.fill(matchers)                   # while the forward runs; a None is a row that needs no mask
    matcher.accept_token(token_id)                 # after the draw
    matcher.accept_forced(limit, least)            # what must follow needs no draw

A matcher follows the tokens that the sequence keeps. Preemption keeps them all, so it needs no rollback; `rollback` is
for tokens that are taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class GrammarMatcher(Protocol):
    """One sequence's place in its grammar. Engine thread alone."""

    def accept_token(self, token_id: int) -> bool:
        """Advance over `token_id`; false, and nothing changes, when the grammar does not allow it."""
        ...

    def accept_forced(self, limit: int, least: int = 1) -> list[int]:
        """Advance over the next tokens as long as one alone is allowed, `limit` at most; which they are.

        None are taken, and nothing changes, when they are fewer than `least`.
        """
        ...

    def allows_everything(self) -> bool:
        """Whether any token may come next, so that no mask is needed."""
        ...

    def fill_bitmask(self, row: Any) -> None:
        """Write the mask of the next token into `row`: int32 [ceil(vocab_size / 32)], bit 1 = allowed."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` accepted tokens."""
        ...

    def is_terminated(self) -> bool:
        """Whether the grammar has ended: only stop tokens are allowed from here."""
        ...

    def failure(self) -> str:
        """Which limit the grammar has run into, so that it cannot be followed any further; "" as long as it can."""
        ...


class CompiledGrammar(Protocol):
    """What a constraint handle holds for the local engine."""

    def new_matcher(self, stop_ids: frozenset[int]) -> GrammarMatcher:
        """A matcher at the grammar's start; `stop_ids` are allowed exactly when the grammar may end."""
        ...


class BitmaskFiller(Protocol):
    """Allocates and fills the bitmasks of a step, off the GIL where it can."""

    def fill(self, matchers: Sequence[GrammarMatcher | None]) -> Any:
        """int32 [len(matchers), ceil(vocab_size / 32)]; rows without a matcher are all ones. In one thread at a time.

        Valid until the second next call: the buffers take turns, so that one may still be copied from.
        """
        ...
