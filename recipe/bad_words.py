"""Texts that an output must not hold, as the token sequences that would write them."""

from __future__ import annotations

from collections.abc import Iterable

from recipe.encoding.tokenizer import Tokenizer


def bad_word_token_ids(words: Iterable[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The tokens of each word at the start of a text, and of the word behind a space, which most vocabularies write
    with other tokens. A word that a tokenizer drops altogether has none.
    """
    spellings = (spelling for word in words for spelling in (word, f" {word.lstrip()}"))
    sequences = (tuple(tokenizer.encode(spelling)) for spelling in spellings)
    return [list(sequence) for sequence in dict.fromkeys(sequences) if sequence]
