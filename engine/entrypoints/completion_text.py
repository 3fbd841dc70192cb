"""The text of completions: tokens in, text out, up to the first stop string.

Decoder and matcher are those of the streams, so a text says the same here as over HTTP. Without stop strings a
completion is decoded once, when it is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from recipe.encoding.tokenizer import Tokenizer
from recipe.stream.decoder import StreamDecoder
from recipe.stream.matcher import Literal, Matcher, Pattern, PatternSet
from recipe.stream.segment import ANY


class Detokenizer:
    """Makes the texts of one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.inner.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    def text(self, stop: Sequence[str] = (), *, skip_special_tokens: bool = True) -> CompletionText:
        """An empty text that takes tokens."""
        skipped = self._special_ids if skip_special_tokens else frozenset()
        return CompletionText(StreamDecoder(self._tokenizer), _stop_patterns(tuple(stop)), skipped)

    def token(self, token_id: int) -> str:
        """The text of one token alone; a part of a character shows as the replacement character."""
        return self._tokenizer.token_bytes(token_id).decode(errors="replace")


class CompletionText:
    """One growing text. `stop` is the stop string that was met; then the text has ended before it."""

    __slots__ = ("_decoder", "_length", "_matcher", "_pieces", "_skipped", "stop")

    def __init__(self, decoder: StreamDecoder, stops: PatternSet, skipped: frozenset[int]) -> None:
        self._decoder = decoder
        self._matcher = Matcher(stops)
        self._skipped = skipped
        self._pieces: list[str] = []
        self._length = 0
        self.stop: str | None = None

    def push(self, token_ids: Iterable[int]) -> bool:
        """Take in tokens; true when one of them completed a stop string. Nothing may follow that."""
        shown = [token_id for token_id in token_ids if token_id not in self._skipped]
        for segment in self._decoder.decode(shown, None):
            match = self._matcher.scan(segment.text, ANY, 0)
            self._pieces.append(segment.text)
            if match is not None:
                self.stop = match.pattern.text
                self._pieces = ["".join(self._pieces)[: self._length + match.end - match.length]]
                return True
            self._length += len(segment.text)
        return False

    def __str__(self) -> str:
        return "".join(self._pieces)


@lru_cache(maxsize=64)
def _stop_patterns(stops: tuple[str, ...]) -> PatternSet:
    return PatternSet([Pattern(text, Literal(text)) for text in stops])
