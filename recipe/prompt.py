"""A prompt: text of which some ranges are special tokens.

Whether a stretch is special is decided where it is written, never by how it is spelled: an encoding pushes its markers
with `push_special` and everything else with `push_text`, and the tokenizer encodes the two by different roads. Pieces
are kept as they come; text, offsets and stretches are derived from them when asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Self

from recipe.argument import text as text_argument

if TYPE_CHECKING:
    from recipe.image_source import ImageSource


class SpecialToken(Enum):
    """The kinds of special tokens, in the order of the reference; the value is the keyword in `SpecialTokens`."""

    __hash__ = object.__hash__  # that of Enum is written in Python

    Bos = "bos"
    Eos = "eos"
    ThinkingStart = "thinking_start"
    ThinkingEnd = "thinking_end"
    System = "system"
    User = "user"
    Assistant = "assistant"
    LatestReminder = "latest_reminder"
    Dsml = "dsml"
    Image = "image"
    Ref = "ref"
    RefEnd = "ref_end"
    Box = "box"
    BoxEnd = "box_end"
    Point = "point"
    PointEnd = "point_end"
    Polygon = "polygon"
    PolygonEnd = "polygon_end"

    def default_str(self) -> str:
        """Return the default spelling of this token."""
        return _DEFAULTS[self.value]

    def __int__(self) -> int:
        return _POSITIONS[self.value]

    def __repr__(self) -> str:
        return f"SpecialToken.{self.name}"


_DEFAULTS = {
    "bos": "<｜begin▁of▁sentence｜>",
    "eos": "<｜end▁of▁sentence｜>",
    "thinking_start": "<think>",
    "thinking_end": "</think>",
    "system": "<｜System｜>",
    "user": "<｜User｜>",
    "assistant": "<｜Assistant｜>",
    "latest_reminder": "<｜latest_reminder｜>",
    "dsml": "｜DSML｜",
    "image": "<｜image｜>",
    "ref": "<｜ref｜>",
    "ref_end": "<｜/ref｜>",
    "box": "<｜box｜>",
    "box_end": "<｜/box｜>",
    "point": "<｜point｜>",
    "point_end": "<｜/point｜>",
    "polygon": "<｜polygon｜>",
    "polygon_end": "<｜/polygon｜>",
}
_POSITIONS = {name: position for position, name in enumerate(_DEFAULTS)}


class SpecialTokens:
    """The spelling of each special token. What is not given keeps its default."""

    __slots__ = ("_given", "_spellings")

    def __init__(
        self,
        *,
        bos: str | None = None,
        eos: str | None = None,
        thinking_start: str | None = None,
        thinking_end: str | None = None,
        system: str | None = None,
        user: str | None = None,
        assistant: str | None = None,
        latest_reminder: str | None = None,
        dsml: str | None = None,
        image: str | None = None,
        ref: str | None = None,
        ref_end: str | None = None,
        box: str | None = None,
        box_end: str | None = None,
        point: str | None = None,
        point_end: str | None = None,
        polygon: str | None = None,
        polygon_end: str | None = None,
    ) -> None:
        given = (
            (bos, eos, thinking_start, thinking_end, system, user, assistant, latest_reminder, dsml, image)
            + (ref, ref_end, box, box_end, point, point_end, polygon, polygon_end)
        )  # fmt: skip
        self._given = given
        self._spellings = {
            kind: kind.default_str() if spelling is None else text_argument(kind.value, spelling)
            for kind, spelling in zip(SpecialToken, given, strict=True)
        }

    def __reduce__(self) -> tuple[Callable[..., "SpecialTokens"], tuple[str | None, ...]]:
        """What was given; a process that has had the same before takes that again."""
        return _special_tokens, self._given

    def token(self, token: SpecialToken) -> str:
        """Return the spelling of `token`."""
        if not isinstance(token, SpecialToken):
            raise TypeError(f"argument 'token': '{type(token).__name__}' object cannot be cast as 'SpecialToken'")
        return self._spellings[token]


@lru_cache(maxsize=16)
def _special_tokens(*given: str | None) -> SpecialTokens:
    return SpecialTokens(**{kind.value: spelling for kind, spelling in zip(SpecialToken, given, strict=True)})


class Prompt:
    """Text under construction, with the ranges that are special tokens.

    `pieces` are its parts in order and `special_pieces` the indices of those that are special, ascending.
    """

    __slots__ = ("pieces", "special_pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.special_pieces: list[int] = []

    def push_text(self, text: str) -> None:
        """Append ordinary text."""
        self.pieces.append(text)

    def push_special(self, spelling: str) -> None:
        """Append one special token; an empty spelling is none."""
        if spelling:
            self.special_pieces.append(len(self.pieces))
            self.pieces.append(spelling)

    def push_between(self, spelling: str, texts: Sequence[str]) -> None:
        """Append `texts`, with one special token between each two."""
        if not spelling:
            self.push_text("".join(texts))
            return
        first = len(self.pieces) + 1
        pieces = [spelling] * (2 * len(texts) - 1)
        pieces[::2] = texts
        self.pieces += pieces
        self.special_pieces += range(first, len(self.pieces), 2)

    def push_marked(self, text: str, ranges: Iterable[tuple[int, int]]) -> None:
        """Append `text`, whose `ranges` (code points, ascending, disjoint) are special tokens."""
        done = 0
        for start, end in ranges:
            self.push_text(text[done:start])
            self.push_special(text[start:end])
            done = end
        self.push_text(text[done:])

    def extend(self, other: "Prompt") -> None:
        """Append another prompt."""
        offset = len(self.pieces)
        self.pieces += other.pieces
        self.special_pieces += [offset + index for index in other.special_pieces]

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def special_ranges(self) -> list[tuple[int, int]]:
        """Half-open code point ranges of the special tokens in `text`, ascending and disjoint."""
        ranges, offset, next_piece = [], 0, 0
        for index in self.special_pieces:
            offset += sum(map(len, self.pieces[next_piece:index]))
            end = offset + len(self.pieces[index])
            ranges.append((offset, end))
            offset, next_piece = end, index + 1
        return ranges

    def stretches(self) -> Iterator[tuple[str, bool]]:
        """Yield the prompt as (text, is special) in order, with ordinary neighbours joined and nothing empty."""
        pieces, next_piece = self.pieces, 0
        for index in self.special_pieces:
            if index > next_piece:
                ordinary = pieces[next_piece] if index == next_piece + 1 else "".join(pieces[next_piece:index])
                if ordinary:
                    yield ordinary, False
            yield pieces[index], True
            next_piece = index + 1
        if ordinary := "".join(pieces[next_piece:]):
            yield ordinary, False

    def split_off(self, at: int) -> "Prompt":
        """Keep the first `at` code points and return the rest.

        A special token that is cut becomes ordinary text in both halves.
        """
        text, ranges = self.text, self.special_ranges
        if not 0 <= at <= len(text):
            raise IndexError(f"split at {at} is outside the prompt of {len(text)} code points")
        tail = Prompt()
        tail.push_marked(text[at:], [(start - at, end - at) for start, end in ranges if start >= at])
        self.pieces, self.special_pieces = [], []
        self.push_marked(text[:at], [span for span in ranges if span[1] <= at])
        return tail


class RenderedPrompt:
    """A rendered conversation: its prompt and the images that the placeholders stand for. Only encodings make them."""

    __slots__ = ("_image_sources", "_prompt")
    _prompt: Prompt
    _image_sources: Sequence["ImageSource"]

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise TypeError("cannot create 'RenderedPrompt' instances")

    @classmethod
    def trusted(cls, prompt: Prompt, image_sources: Sequence["ImageSource"]) -> Self:
        self = cls.__new__(cls)
        self._prompt, self._image_sources = prompt, image_sources
        return self

    @property
    def parts(self) -> Prompt:
        """The prompt in pieces, as the tokenizer wants it."""
        return self._prompt

    @property
    def prompt(self) -> str:
        return self._prompt.text

    @property
    def special_ranges(self) -> list[tuple[int, int]]:
        """Half-open code point ranges of `prompt` that are special tokens, ascending and disjoint."""
        return self._prompt.special_ranges

    @property
    def image_sources(self) -> list["ImageSource"]:
        return list(self._image_sources)

    def __repr__(self) -> str:
        return f"RenderedPrompt(prompt=<{len(self.prompt)} characters>, image_sources={len(self._image_sources)})"
