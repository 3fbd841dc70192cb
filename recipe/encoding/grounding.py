"""Grounding markers (ref, box, point, polygon) that a model wrote into its own answers.

They are special tokens wherever they stand in the text of an assistant; in anybody else's text they are letters. Where
spellings overlap, the match that is complete first wins, and the longer one of two that end together. A spelling that
contains another one before its last character can therefore never match; without those, the leftmost match is the
winner, which is what a regular expression finds.
"""

import re
from collections.abc import Collection, Iterable
from itertools import takewhile

from recipe.prompt import Prompt, SpecialToken, SpecialTokens

_KINDS = (
    SpecialToken.Ref,
    SpecialToken.RefEnd,
    SpecialToken.Box,
    SpecialToken.BoxEnd,
    SpecialToken.Point,
    SpecialToken.PointEnd,
    SpecialToken.Polygon,
    SpecialToken.PolygonEnd,
)


class Grounding:
    """Finds the grounding markers of one mapping of spellings."""

    __slots__ = ("_beginning", "_marker")

    def __init__(self, tokens: SpecialTokens) -> None:
        spellings = {tokens.token(kind) for kind in _KINDS} - {""}
        self._beginning = _shared_beginning(spellings)
        self._marker = re.compile("|".join(map(re.escape, sorted(_reachable(spellings)))) or "(?!)")

    def push(self, prompt: Prompt, text: str) -> None:
        """Write the text of an assistant, with its markers as special tokens."""
        if self._beginning in text:
            prompt.push_marked(text, [match.span() for match in self._marker.finditer(text)])
        else:
            prompt.push_text(text)


def _shared_beginning(spellings: Collection[str]) -> str:
    first, last = min(spellings, default=""), max(spellings, default="")
    return "".join(char for char, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))


def _reachable(spellings: Iterable[str]) -> list[str]:
    return [spelling for spelling in spellings if not any(other in spelling[:-1] for other in spellings)]
