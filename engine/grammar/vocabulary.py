"""The tokenizer as grammars see it: text comes from ordinary tokens alone.

Added tokens are markers: a grammar names them by ID, and no text, string or pattern ever reaches them, whatever they
spell. So the token that ends a block cannot be hidden in a string, and its spelling in a string ends nothing. Added
tokens of whitespace are text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec
from llguidance import LLTokenizer

# Tokens that a mask takes or leaves as a whole: blanks, and text of a JSON string up to some length. There are
# more lengths than by default, as a string of bounded length meets them all on its way.
_STRING_LENGTHS = ("{1,5}", "{1,10}", "{1,20}", "{1,30}", "+")
_SLICES = [r"[\x20\x0A\x0D\x09]+", *(rf'[^"\\\x00-\x1F\x7F]{length}' for length in _STRING_LENGTHS)]


class Vocabulary:
    """A model's tokens. `vocab_size` is the width of its logits.

    Raises `ValueError` for a tokenizer that cannot be read.
    """

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        content = msgspec.json.decode(tokenizer_json)
        added = [token for token in content.get("added_tokens", ()) if token["id"] < vocab_size]
        for token in added:
            token["special"] = token["special"] or not token["content"].isspace()
        content["added_tokens"] = added
        eos = sorted(token for token in eos_token_ids if token < vocab_size)
        self.vocab_size = vocab_size
        text = msgspec.json.encode(content).decode()
        self.tokenizer = LLTokenizer(text, n_vocab=vocab_size, eos_token=eos or None, slices=_SLICES)
        self.eos_token_ids = frozenset(self.tokenizer.eos_tokens)
        self._markers = {token["content"]: token["id"] for token in added if token["special"]}
        self._marker_ids = frozenset(self._markers.values())

    def marker_id(self, spelling: str) -> int | None:
        """The token that is spelled like that, if there is one."""
        return self._markers.get(spelling)

    def is_marker(self, token_id: int) -> bool:
        return token_id in self._marker_ids

    def symbol(self, spelling: str) -> str:
        """How a Lark grammar writes `spelling`: as its token, or as text where it has none."""
        token_id = self.marker_id(spelling)
        return literal(spelling) if token_id is None else f"<[{token_id}]>"

    def encode(self, text: bytes) -> list[int]:
        """Ordinary tokens that spell `text`; byte by byte, if it spells a marker."""
        token_ids: list[int] = self.tokenizer.tokenize_bytes(text)
        if self._marker_ids.isdisjoint(token_ids):
            return token_ids
        return [token_id for byte in text for token_id in self.tokenizer.tokenize_bytes(bytes([byte]))]

    def bytes_of(self, token_id: int) -> bytes:
        """What an ordinary token spells; nothing for a marker."""
        text: bytes = b"" if self.is_marker(token_id) else self.tokenizer.decode_bytes([token_id])
        return text


def literal(text: str) -> str:
    """How a Lark grammar writes `text`."""
    return json.dumps(text)
