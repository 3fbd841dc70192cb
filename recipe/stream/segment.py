"""A stretch of model output that arrived at once: the unit in which the parser emits text.

Whether the characters of a stretch can be part of a marker depends on where they come from, not on how they look:
text chunks (`ANY`) match everything, ordinary tokens (`PLAIN`) never spell a special token, and a special token
(`SPECIAL`) is never ordinary text.
"""

from typing import Final

ANY: Final = 0
PLAIN: Final = 1
SPECIAL: Final = 2


class Segment:
    """`text` of one origin, the number of tokens it accounts for, and their log probabilities as JSON array items."""

    __slots__ = ("logprobs", "origin", "text", "token_count")

    def __init__(self, text: str, origin: int, token_count: int, logprobs: str | None = None) -> None:
        self.text = text
        self.origin = origin
        self.token_count = token_count
        self.logprobs = logprobs
