"""A Hugging Face tokenizer, and what streams need of it.

`encode` uses the whole vocabulary, so that the spelling of an added token becomes that token. Prompts are not encoded
like that: they take the way of `PromptTokenizer`.
"""

from collections.abc import Callable, Mapping
from functools import cached_property

import tokenizers

from recipe.argument import text as text_argument
from recipe.encoding.prompt_tokenizer import PromptTokenizer
from recipe.encoding.token_bytes import TokenBytes


class Tokenizer:
    """A tokenizer loaded from the contents of a tokenizer.json file."""

    inner: tokenizers.Tokenizer
    """The tokenizer of the `tokenizers` package."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise TypeError("cannot create 'Tokenizer' instances")

    @classmethod
    def trusted(cls, inner: tokenizers.Tokenizer) -> "Tokenizer":
        self = cls.__new__(cls)
        self.inner = inner
        return self

    @staticmethod
    def from_file(path: str) -> "Tokenizer":
        """Load a tokenizer.json file. Raises RuntimeError when that fails."""
        return _loaded(tokenizers.Tokenizer.from_file, text_argument("path", path))

    @staticmethod
    def from_str(text: str) -> "Tokenizer":
        """Load the contents of a tokenizer.json file. Raises RuntimeError when that fails."""
        return _loaded(tokenizers.Tokenizer.from_str, text_argument("text", text))

    @staticmethod
    def from_pretrained(identifier: str, revision: str | None = None, token: str | None = None) -> "Tokenizer":
        """Download a tokenizer.json from the Hugging Face Hub, or find it in the cache. Raises RuntimeError."""
        name = text_argument("identifier", identifier)
        return _loaded(lambda: tokenizers.Tokenizer.from_pretrained(name, revision=revision or "main", token=token))

    def encode(self, text: str) -> list[int]:
        """Return the IDs of `text` with the whole vocabulary, and without a BOS token in front."""
        ids: list[int] = self.inner.encode(text_argument("text", text), add_special_tokens=False).ids
        return ids

    @cached_property
    def added_spellings(self) -> Mapping[int, str]:
        """The spelling of every token of the added vocabulary, by ID."""
        return {token_id: token.content for token_id, token in self.inner.get_added_tokens_decoder().items()}

    @cached_property
    def whole_word_spellings(self) -> frozenset[str]:
        """The spellings that are tokens only where no letter or digit touches them (single_word)."""
        return frozenset(token.content for token in self.inner.get_added_tokens_decoder().values() if token.single_word)

    @cached_property
    def token_bytes(self) -> Callable[[int], bytes]:
        """Return the bytes of a token, added or not; none for an unknown ID."""
        return TokenBytes(self.inner).__getitem__

    @cached_property
    def prompt_tokenizer(self) -> PromptTokenizer:
        """The encoder of prompts. Raises RuntimeError for a tokenizer that pads."""
        return PromptTokenizer(self.inner)


def _loaded(load: Callable[..., tokenizers.Tokenizer], *args: str) -> Tokenizer:
    try:
        return Tokenizer.trusted(load(*args))
    except Exception as problem:  # the package raises plain Exceptions
        raise RuntimeError(str(problem)) from problem
