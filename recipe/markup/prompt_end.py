"""Tells from the end of a prompt whether it leaves the reasoning open, as templates do that end in `<think>`."""

from __future__ import annotations

from array import array

from recipe.markup.output_markup import OutputMarkup
from recipe.stream.decoder import StreamTokenizer

_MAX_TOKENS = 32  # a marker that is text, and white space behind it


def opens_reasoning(packed_token_ids: bytes, tokenizer: StreamTokenizer, markup: OutputMarkup) -> bool:
    """Whether nothing but white space stands behind the start of the reasoning.

    The prompt is given as native 32-bit unsigned integers. A start that is a token is looked for as a token alone.
    """
    if markup.reasoning is None:
        return False
    start = markup.marker(markup.reasoning.start)
    token_ids = array("I", packed_token_ids[-_MAX_TOKENS * array("I").itemsize :])
    behind = b""  # of the last added token
    while token_ids:
        token_id = token_ids.pop()
        spelling = tokenizer.added_spellings.get(token_id)
        if spelling is not None and spelling.strip():
            return start.special and spelling == start.text and not behind.strip()
        behind = tokenizer.token_bytes(token_id) + behind
    return not start.special and behind.rstrip().endswith(start.text.encode())
