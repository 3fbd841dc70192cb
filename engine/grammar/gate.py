"""What free output must pass before a grammar binds it: the end of the reasoning, or a marker that opens a block.

A marker is a token, or text where the vocabulary has no token for it. It is watched for token by token; text that
merely looks like a token's spelling opens nothing. A token may hold the end of a marker and more; that rest belongs to
what follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.grammar.vocabulary import Vocabulary

_MAX_LEADING_SPACE = 16  # bytes of whitespace that may stand before an opening at the start of the output


@dataclass(frozen=True, slots=True)
class Opening:
    """One marker: the output ends with the bytes `text`, and then comes the token `token_id`, if there is one.

    `at_start`: only whitespace may stand before it.
    """

    text: bytes
    token_id: int | None = None
    at_start: bool = False

    @classmethod
    def of(cls, vocabulary: Vocabulary, spelling: str, after: str = "") -> Opening:
        """The marker `spelling` right behind the text `after`."""
        token_id = vocabulary.marker_id(spelling)
        return cls((after if token_id is not None else after + spelling).encode(), token_id)

    def rest(self, tail: bytes, token_id: int, is_all: bool) -> bytes | None:
        """What stands behind the marker when the output ends with `tail` and then `token_id`; None: no marker yet.

        For text, `tail` ends with the token. `is_all`: nothing was before `tail`.
        """
        if self.token_id is not None:
            return b"" if token_id == self.token_id and tail.endswith(self.text) else None
        place = tail.find(self.text) if self.at_start else tail.rfind(self.text)
        if place < 0 or (self.at_start and (not is_all or tail[:place].strip())):
            return None
        return tail[place + len(self.text) :]


@dataclass(frozen=True, slots=True)
class Gate:
    """Any of `openings` passes. `may_end`: the output may also end without passing.

    `replays`: the marker is the beginning of the grammar, which takes it in again. A gate with an `entry_id` stands
    only before output whose first token that is.
    """

    openings: tuple[Opening, ...]
    may_end: bool
    replays: bool
    entry_id: int | None = None


class GateWatch:
    """Watches the output of one sequence for one gate."""

    def __init__(self, gate: Gate, vocabulary: Vocabulary) -> None:
        self.gate = gate
        self._vocabulary = vocabulary
        self._kept = _MAX_LEADING_SPACE + max(len(opening.text) for opening in gate.openings)
        self._tail = b""
        self._is_all = True

    def accept(self, token_id: int) -> tuple[Opening, bytes] | None:
        """Take the next token in; the opening it completes, with the bytes behind it."""
        text = self._vocabulary.bytes_of(token_id)
        tail = self._tail + text
        for opening in self.gate.openings:
            if (rest := opening.rest(tail, token_id, self._is_all)) is not None:
                return opening, rest
        if self._vocabulary.is_marker(token_id):
            self._tail, self._is_all = b"", False
        else:
            self._is_all = self._is_all and len(tail) <= self._kept
            self._tail = tail[-self._kept :]
        return None
