"""Token IDs to segments of text.

Ordinary tokens are bytes; what they add up to is held while it may be the first part of a character. An added token
(`</think>`, the DSML token) is cut out as a segment of its own, so that the parser can tell it from text that merely
looks like it. What is still held at the end of the output is not text and is lost.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from recipe.stream.inference import TokenLogprob
from recipe.stream.logprobs import logprob_json
from recipe.stream.segment import PLAIN, SPECIAL, Segment

_REPLACEMENT = "\ufffd"


class StreamTokenizer(Hashable, Protocol):
    """What the stream needs of a tokenizer."""

    @property
    def added_spellings(self) -> Mapping[int, str]:
        """The spelling of every token of the added vocabulary."""

    @property
    def token_bytes(self) -> Callable[[int], bytes]:
        """Gives the bytes of any token, added or not; none for an unknown ID."""

    def encode(self, text: str) -> list[int]:
        """The token IDs of `text`, added vocabulary included."""


class WholeTexts(dict[int, str | None]):
    """The text of each token that is whole by itself; None for added tokens and those that end amid a character."""

    def __init__(self, tokenizer: StreamTokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str | None:
        self[token_id] = text = self._find(token_id)
        return text

    def _find(self, token_id: int) -> str | None:
        if token_id in self._tokenizer.added_spellings:
            return None
        text, consumed = codecs.utf_8_decode(self._tokenizer.token_bytes(token_id), "replace", False)
        is_whole = (
            text != "" and consumed == len(self._tokenizer.token_bytes(token_id)) and not text.endswith(_REPLACEMENT)
        )
        return text if is_whole else None


@lru_cache(maxsize=8)
def _whole_texts(tokenizer: StreamTokenizer) -> WholeTexts:
    return WholeTexts(tokenizer)


class StreamDecoder:
    """Decodes the tokens of one stream."""

    __slots__ = ("_added", "_bytes", "_count", "_logprobs", "_text", "_token_bytes", "_whole_texts")

    def __init__(self, tokenizer: StreamTokenizer) -> None:
        self._added = tokenizer.added_spellings
        self._token_bytes = tokenizer.token_bytes
        self._whole_texts = _whole_texts(tokenizer)
        self._bytes = b""  # the first part of a character
        self._text = ""  # decoded, but ending in a character that may not be complete
        self._count = 0  # tokens held
        self._logprobs: list[str] = []  # theirs; of use only when every token has them

    def decode(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None) -> list[Segment]:
        """The segments that these tokens complete.

        Raises ValueError when there are log probabilities for another number of tokens.
        """
        if logprobs is None and not self._count and len(token_ids) == 1:
            text = self._whole_texts[token_ids[0]]
            if text is not None:
                return [Segment(text, PLAIN, 1)]
        if logprobs is not None and len(logprobs) != len(token_ids):
            raise ValueError(
                f"invalid log probabilities: {len(logprobs)} log probabilities for {len(token_ids)} token IDs"
            )
        segments: list[Segment] = []
        for position, token_id in enumerate(token_ids):
            spelling = self._added.get(token_id)
            if spelling is not None and (self._bytes or self._text):
                self._flush(segments)
            self._count += 1
            if logprobs is not None:
                self._logprobs.append(logprob_json(token_id, logprobs[position], self._token_bytes))
            if spelling is None:
                self._bytes += self._token_bytes(token_id)
            else:
                segments.append(self._take(spelling, SPECIAL))
        self._cut(segments)
        return segments

    def _cut(self, segments: list[Segment]) -> None:
        """Make a segment of what is held, unless it ends amid a character."""
        if not self._bytes:
            return
        text, consumed = codecs.utf_8_decode(self._bytes, "replace", False)
        self._bytes = self._bytes[consumed:]
        self._text += text
        if not self._bytes and not self._text.endswith(_REPLACEMENT):
            segments.append(self._take(self._text, PLAIN))

    def _flush(self, segments: list[Segment]) -> None:
        """Make a segment of what is held, replacing a character that will not be completed."""
        text = self._text + self._bytes.decode(errors="replace")
        self._bytes = b""
        segments.append(self._take(text, PLAIN))

    def _take(self, text: str, origin: int) -> Segment:
        logprobs = ",".join(self._logprobs) if len(self._logprobs) == self._count else None
        segment = Segment(text, origin, self._count, logprobs)
        self._text = ""
        self._count = 0
        self._logprobs.clear()
        return segment
