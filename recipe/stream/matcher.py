"""Find the first of several patterns in text that arrives in pieces.

Every pattern is a branch with its own Knuth-Morris-Pratt state, so no text is looked at twice, and the branch that
is completed by the earliest character wins (at a tie, the first in the list). Where no branch is under way, a
compiled regular expression jumps to the next character that can begin one: plain text costs no loop over its
characters.

A pattern may take in the newlines directly before it, however many they are; then a run of newlines is already a
part of a possible match (a newline that breaks off another match begins no run). Which characters count as equal
depends on their origin (see `segment`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

from recipe.stream.segment import SPECIAL

_NEVER = "\ud800"  # a lone surrogate: no text contains it


@dataclass(frozen=True, slots=True)
class Literal:
    """A part of a pattern: characters of ordinary text, or the spelling of a special token."""

    text: str
    special: bool = False


class Pattern:
    """A non-empty sequence of literals, what it means, and whether it takes in the newlines before it."""

    __slots__ = ("absorbs_newlines", "failure", "length", "literals", "meaning", "spellings", "text")

    def __init__(self, meaning: Hashable, *literals: Literal, absorbs_newlines: bool = False) -> None:
        self.meaning = meaning
        self.literals = literals
        self.absorbs_newlines = absorbs_newlines
        self.text = "".join(literal.text for literal in literals)
        self.length = len(self.text)
        plain = "".join(_NEVER * len(part.text) if part.special else part.text for part in literals)
        special = "".join(part.text if part.special else _NEVER * len(part.text) for part in literals)
        self.spellings = (self.text, plain, special)  # by origin: what a character must equal
        if absorbs_newlines and self.text.startswith("\n"):  # the run has taken in that newline
            self.spellings = (_NEVER * self.length,) * 3
        self.failure = _failure_table(list(zip(plain, special, strict=True)))


class PatternSet:
    """Patterns that are looked for together, in the order that decides a tie. Shared by all streams."""

    __slots__ = ("first", "patterns", "start")

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.patterns = tuple(pattern for pattern in patterns if pattern.length)
        self.first = {pattern.text[0] for pattern in self.patterns}
        if any(pattern.absorbs_newlines for pattern in self.patterns):
            self.first.add("\n")
        self.start = any_of(self.first)


@dataclass(frozen=True, slots=True)
class Match:
    """A completed pattern: it ends before the character `end` of the scanned text and is `length` characters long."""

    pattern: Pattern
    end: int
    length: int


class Matcher:
    """The state of one search. `held` is how many characters at the end of the text so far may begin a match."""

    __slots__ = ("_matched", "_newlines", "_set", "held")

    def __init__(self, pattern_set: PatternSet) -> None:
        self.restart(pattern_set)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, so that text without the start of a match passes unread."""
        return not self.held

    @property
    def find_start(self) -> Callable[[str], object]:
        """Finds in a text where a match could start."""
        return self._set.start.search

    def restart(self, pattern_set: PatternSet) -> None:
        """Forget everything and look for other patterns."""
        self._set = pattern_set
        self._matched = [0] * len(pattern_set.patterns)  # characters matched, by branch
        self._newlines = self._matched.copy()  # newlines taken in before them, by branch
        self.held = 0

    def forget(self) -> None:
        """Begin a new search for the same patterns."""
        self.restart(self._set)

    def scan(self, text: str, origin: int, position: int, end: int | None = None) -> Match | None:
        """Take in `text` from `position` on, up to the first match or to `end`; None when there is none.

        After a match the state is that of a new search.
        """
        if end is None:
            end = len(text)
        while position < end:
            if not self.held:
                start = self._set.start.search(text, position, end)
                if start is None:
                    return None
                position = start.start()
            completed = self._step(text[position], origin)
            position += 1
            if completed is not None:
                return self._match(completed, position)
        return None

    def _step(self, character: str, origin: int) -> int | None:
        """Advance every branch by one character; return the first that is complete, if any."""
        held = 0
        for branch, pattern in enumerate(self._set.patterns):
            matched = self._advance(branch, pattern, character, origin)
            if matched == pattern.length:
                return branch
            held = max(held, matched + self._newlines[branch])
        self.held = held
        return None

    def _advance(self, branch: int, pattern: Pattern, character: str, origin: int) -> int:
        """The number of characters of `pattern` that are matched after one more character."""
        before = matched = self._matched[branch]
        spelling = pattern.spellings[origin]
        while matched and spelling[matched] != character:
            matched = pattern.failure[matched]
        if spelling[matched] == character:
            matched += 1
        if matched != before + 1:
            in_run = pattern.absorbs_newlines and not before and character == "\n" and origin != SPECIAL
            self._newlines[branch] = self._newlines[branch] + 1 if in_run else 0
        self._matched[branch] = matched
        return matched

    def _match(self, branch: int, end: int) -> Match:
        pattern = self._set.patterns[branch]
        match = Match(pattern, end, pattern.length + self._newlines[branch])
        self.forget()
        return match


def any_of(characters: Collection[str]) -> re.Pattern[str]:
    """An expression for any one of the characters."""
    return re.compile(f"[{re.escape(''.join(sorted(characters)))}]") if characters else re.compile("(?!)")


def _failure_table(symbols: list[tuple[str, str]]) -> list[int]:
    """For each number of matched symbols, the length of the longest proper prefix that is also their suffix."""
    table = [0] * (len(symbols) + 1)
    border = 0
    for position in range(1, len(symbols)):
        while border and symbols[border] != symbols[position]:
            border = table[border]
        if symbols[border] == symbols[position]:
            border += 1
        table[position + 1] = border
    return table
