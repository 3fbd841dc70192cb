"""One sequence's place in its grammar.

    free ── gate ──► free ── gate ──► bound ── the grammar ends ──► terminated

A gate that stands only behind an entry token is skipped, unless the first token is that. Free output is watched, not
masked; bound output is masked by the grammar. Stop tokens are this matcher's business alone: the grammar's own
end-of-sequence bits give way to the sequence's stop tokens, which are allowed exactly when the output may end.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import takewhile
from time import thread_time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from llguidance import LLMatcher

from engine.grammar.gate import Gate, GateWatch, Opening
from engine.grammar.reason import reason_of

if TYPE_CHECKING:
    from engine.grammar.compiled_grammar import CompiledGrammar

_MAX_TOKEN_S = 0.05  # of CPU time to follow one token: every other sequence waits for that


class _EndBit(NamedTuple):
    """Where the mask has a token that ends a sequence, or would end it; `stops` tells this one."""

    word: int
    bit: np.uint32
    others: np.uint32
    stops: bool

    @classmethod
    def of(cls, token_id: int, stop_ids: Container[int]) -> Self:
        bit = np.uint32(1 << (token_id % 32))
        return cls(token_id // 32, bit, ~bit, token_id in stop_ids)


class Matcher:
    """Implements `engine.core.grammar.GrammarMatcher`. `bound` is the grammar's matcher once it holds, else None."""

    def __init__(self, grammar: CompiledGrammar, stop_ids: frozenset[int]) -> None:
        vocabulary = grammar.vocabulary
        self._grammar = grammar
        self._gates = grammar.gates
        self._vocabulary = vocabulary
        self._stop_ids = [token for token in stop_ids if token < vocabulary.vocab_size]
        self._end_bits = [_EndBit.of(token, self._stop_ids) for token in {*self._stop_ids, *vocabulary.eos_token_ids}]
        self._accepted: list[int] = []
        self._slowness = ""  # what is said of a grammar that takes too long
        self.bound: LLMatcher | None = None
        self._watch: GateWatch | None = None
        self._entry_id: int | None = None  # the token that may come first, whatever the grammar says
        self._begin()

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.vocab_size

    def accept_token(self, token_id: int) -> bool:
        """Advance over `token_id`; false, and nothing changes, when the grammar does not allow it."""
        if token_id == self._entry_id:
            self._enter(0)
        elif self.bound is None:
            self._accept_free(token_id)
        elif not self._accept_bound(self.bound, token_id):
            return False
        self._entry_id = None
        self._accepted.append(token_id)
        return True

    def accept_forced(self, limit: int, least: int = 1) -> list[int]:
        """Advance over the next tokens as long as one alone is allowed, `limit` at most; which they are.

        None are taken, and nothing changes, when they are fewer than `least`.
        """
        if self.bound is None or limit < least or self._slowness:
            return []
        forced = self.bound.compute_ff_tokens()[:limit]
        tokens = list(takewhile(lambda token: token not in self._stop_ids, forced))  # these wait for the end
        if len(tokens) < least:
            return []
        del tokens[self.bound.try_consume_tokens(tokens) :]
        self._accepted += tokens
        return tokens

    def allows_everything(self) -> bool:
        """Whether any token may come next: free output that may also end."""
        return self.bound is None and self._may_end()

    def fill_bitmask(self, row: Any) -> None:
        """Write the mask of the next token into `row`: int32 [ceil(vocab_size / 32)]."""
        if self.bound is None:
            row.fill(-1)
        else:
            self.bound.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self.mask_exceptions(row)

    def mask_exceptions(self, row: Any) -> None:
        """Correct a filled row: stop tokens where the output may end, an entry, nothing once the grammar has failed."""
        if self.failure():
            row.fill(0)
            return
        may_end = self._may_end()
        words = row.view(np.uint32)
        for end in self._end_bits:
            if may_end and end.stops:
                words[end.word] |= end.bit
            elif self.bound is not None or end.stops:
                words[end.word] &= end.others
        if self._entry_id is not None:
            words[self._entry_id // 32] |= np.uint32(1 << (self._entry_id % 32))

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` accepted tokens. Raises `ValueError` for more than there are."""
        if not 0 <= num_tokens <= len(self._accepted):
            raise ValueError(f"num_tokens must be in [0, {len(self._accepted)}]. Given: {num_tokens}")
        kept = self._accepted[: len(self._accepted) - num_tokens]
        self._accepted = []
        self._begin()
        for token_id in kept:
            self.accept_token(token_id)

    def is_terminated(self) -> bool:
        """Whether the grammar has ended: only stop tokens are allowed from here."""
        return self.bound is not None and self.bound.is_stopped() and not self.bound.is_error()

    def failure(self) -> str:
        """Which limit the grammar has run into; "" as long as it can be followed."""
        if self.bound is not None and self.bound.is_error():
            self._grammar.has_failed = True
            return reason_of(self.bound)
        return self._slowness

    def _accept_bound(self, bound: LLMatcher, token_id: int) -> bool:
        started = thread_time()
        is_accepted: bool = bound.try_consume_tokens([token_id]) == 1
        if thread_time() - started > _MAX_TOKEN_S:
            self._slowness = f"a token takes more than {_MAX_TOKEN_S * 1e3:g} ms to follow"
        return is_accepted

    def _may_end(self) -> bool:
        if self.bound is not None:
            return bool(self.bound.is_accepting())
        return self._watch is not None and self._watch.gate.may_end

    def _begin(self) -> None:
        self._entry_id = self._gates[0].entry_id if self._gates else None
        self._enter(0 if self._entry_id is None else 1)

    def _enter(self, gate: int) -> None:
        """Stand before gate number `gate`, or in the grammar behind the last one."""
        self._gate = gate
        is_free = gate < len(self._gates)
        self._watch = GateWatch(self._gates[gate], self._vocabulary) if is_free else None
        self.bound = None if is_free else self._grammar.start.deep_copy()

    def _accept_free(self, token_id: int) -> None:
        if self._watch is None or (passed := self._watch.accept(token_id)) is None:
            return
        opening, rest = passed
        tokens = self._tokens_behind(opening, rest, self._watch.gate)
        start = self._grammar.start.deep_copy()
        if self._gate + 1 < len(self._gates):
            self._enter(self._gate + 1)
            for token in tokens:
                self._accept_free(token)
        elif start.try_consume_tokens(tokens) == len(tokens):
            self._enter(self._gate + 1)
            self.bound = start
        elif not self._watch.gate.may_end:
            self._enter(self._gate + 1)

    def _tokens_behind(self, opening: Opening, rest: bytes, gate: Gate) -> list[int]:
        """What the next phase has to take in when `opening` was passed with `rest` behind it."""
        if not gate.replays:
            return self._vocabulary.encode(rest)
        marker = [] if opening.token_id is None else [opening.token_id]
        return self._vocabulary.encode(opening.text) + marker + self._vocabulary.encode(rest)
