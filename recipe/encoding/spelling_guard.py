"""Keeps what a user typed from becoming a special token in a rendered chat template.

A template works on strings, so once it has run nobody can tell who wrote `<|im_end|>`. Therefore user text is broken
beforehand: a private-use character (the guard) is put

- after each character that begins a spelling: no spelling can begin in user text,
- before each character that ends one: none that the template began can end in user text,
- into a text that as a whole lies inside a spelling: the template cannot put both ends around it.

Keys of objects are looked up by templates (`parameters.properties`), so of those only the whole words that stand
between the signs of a spelling are broken the third way: `think`, not `name` because of `<filename>`.

What the template emits is then split at the spellings that are left, all of them the template's own, and the guard is
dropped from everything else. White space stays at the edges of a text, so a template that trims still does.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from urllib.parse import quote

from recipe.errors import ConversionError

_CANDIDATES = (*range(0xE000, 0xF900), *range(0xF0000, 0xF2000))
_EDGE_SIGNS = re.compile(r"^\W+|\W+$")
_CANDIDATE = re.compile("[\ue000-\uf8ff\U000f0000-\U000f1fff]")
_MAX_GUARDS = 4  # beside one character
_WORD_AT_END = re.compile(rf"\w{_CANDIDATE.pattern}*\Z")
_WORD_AT_START = re.compile(rf"{_CANDIDATE.pattern}*\w")


class Spellings:
    """The special tokens that a template can emit. Those of `whole_words` count only where they touch no word.

    Spellings of white space are left out: they are not markup, and user text is full of them. So are single characters.
    """

    __slots__ = ("_begin", "_end", "_insides", "_pattern", "_whole_words", "_words")

    def __init__(self, spellings: Iterable[str], whole_words: Collection[str] = ()) -> None:
        known = sorted({text for text in spellings if len(text.strip()) > 1}, key=len, reverse=True)
        self._begin = frozenset(text.strip()[0] for text in known)
        self._end = frozenset(text.strip()[-1] for text in known)
        self._insides = "\0".join(text.strip()[1:-1] for text in known)
        self._words = frozenset(_EDGE_SIGNS.sub("", text) for text in known) - {""}
        self._whole_words = frozenset(whole_words)
        self._pattern = re.compile("|".join(map(re.escape, known)) or "(?!)")

    def occur_in(self, texts: Sequence[str]) -> bool:
        """Return whether any of these texts could take part in a spelling."""
        edges = self._begin | self._end
        return any(edge in text for text in texts for edge in edges) or any(map(self.surround, texts))

    def surround(self, text: str) -> bool:
        """Return whether `text`, white space at its edges aside, lies inside a spelling as a whole."""
        core = text.strip()
        return bool(core) and core in self._insides

    def name(self, key: str) -> bool:
        """Return whether `key` is the word of a spelling."""
        return key.strip() in self._words

    def break_up(self, text: str, guard: str) -> str:
        """Return `text` with guards at every character that could begin or end a spelling."""
        for edge in self._begin | self._end:
            if edge in text:
                before, after = guard * (edge in self._end), guard * (edge in self._begin)
                text = text.replace(edge, f"{before}{edge}{after}")
        return text

    def split(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """Yield (text, is special) of what a template has rendered."""
        done = 0
        for match in self._pattern.finditer(rendered):
            if match.group() in self._whole_words and _touches_word(rendered, *match.span()):
                continue
            yield rendered[done : match.start()], False
            yield match.group(), True
            done = match.end()
        yield rendered[done:], False


def _touches_word(text: str, start: int, end: int) -> bool:
    """Whether a letter or digit stands beside this range, guards aside."""
    before = text[max(0, start - _MAX_GUARDS - 1) : start]
    return bool(_WORD_AT_END.search(before) or _WORD_AT_START.match(text, end))


class Guard:
    """Breaks the texts of one conversation with one character, and takes that out again."""

    __slots__ = ("_char", "_forms", "_spellings")

    def __init__(self, spellings: Spellings, char: str) -> None:
        self._spellings = spellings
        self._char = char
        self._forms = forms(char)

    def text(self, text: str) -> str:
        """Return a user's text in the form in which a template may have it."""
        return self._broken(text, is_inside=self._spellings.surround(text))

    def key(self, key: str) -> str:
        """The same for the key of an object."""
        return self._broken(key, is_inside=self._spellings.name(key))

    def _broken(self, text: str, *, is_inside: bool) -> str:
        broken = self._spellings.break_up(text, self._char)
        if not is_inside or broken != text:
            return broken
        first = len(text) - len(text.lstrip()) + 1
        return f"{text[:first]}{self._char}{text[first:]}"

    def dropped(self, text: str) -> str:
        """Return `text` without guards, also where the template has escaped them."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, "")
        return text


class Collector:
    """Stands in for a guard to see which texts there are."""

    __slots__ = ("texts",)

    def __init__(self) -> None:
        self.texts: list[str] = []

    def text(self, text: str) -> str:
        self.texts.append(text)
        return text

    key = text

    def dropped(self, text: str) -> str:
        return text


def unused_chars(texts: Sequence[str], count: int) -> list[str]:
    """Return `count` private-use characters of which these texts contain neither the character nor an escaped form."""
    everything = "\0".join(texts)
    taken = frozenset() if everything.isascii() else frozenset(_CANDIDATE.findall(everything))
    free: list[str] = []
    for char in map(chr, _CANDIDATES):
        if char not in taken and not any(form in everything for form in forms(char)[1:]):
            free.append(char)
            if len(free) == count:
                return free
    raise ConversionError("the text uses up the private-use characters")


@cache
def forms(char: str) -> tuple[str, ...]:
    """The character, and what JSON, Python's repr and URLs make of it."""
    return (char, *sorted({json.dumps(char)[1:-1], repr(char)[1:-1], quote(char)}))
