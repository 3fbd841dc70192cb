"""Prompts to token IDs.

Special tokens are looked up in the added vocabulary. The ordinary stretches between them are encoded in one batch by a
twin of the tokenizer that shares its model but has no added tokens: whatever is spelled there stays ordinary text.
What has been encoded before is taken from the cache. Long stretches are kept in parts, cut where that changes nothing.
"""

import sys
from array import array
from collections.abc import Iterable
from itertools import chain, pairwise

import tokenizers

from recipe.argument import quoted
from recipe.encoding.exact_cuts import WHOLE_LENGTH, allows_cuts, parts
from recipe.encoding.stretch_context import StretchContext
from recipe.encoding.token_cache import TokenCache
from recipe.prompt import Prompt

_DEFAULT_CACHE_BYTES = 4 << 20
_FIRST = "\0first\0"
"""Distinguishes a text that begins a prompt in the cache, where that makes a difference."""


class PromptTokenizer:
    """Encodes prompts, without adding a BOS token. Raises RuntimeError for a tokenizer that pads its output.

    `cache` holds what has been encoded; its budget may be changed at any time.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, cache_bytes: int = _DEFAULT_CACHE_BYTES) -> None:
        if tokenizer.padding is not None:
            raise RuntimeError("the tokenizer pads its encodings, and a prompt must not be padded")
        added = tokenizer.get_added_tokens_decoder()
        self.cache = TokenCache(cache_bytes)
        self._special_ids = _SpecialIds({token.content: _packed([token_id]) for token_id, token in added.items()})
        self._added_ids = frozenset(added)
        self._context = StretchContext(tokenizer)
        self._longest = WHOLE_LENGTH if self._context.is_free and allows_cuts(tokenizer) else sys.maxsize

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the IDs of `prompt`. Raises RuntimeError when it has a special token that the vocabulary lacks."""
        return unpacked(self.encode_packed(prompt))

    def encode_packed(self, prompt: Prompt) -> bytes:
        """Return the same IDs as native 32-bit unsigned integers."""
        context = self._context
        if context.is_free:
            return self._encode(prompt.stretches(), self._longest)
        stretches = context.settle(list(prompt.stretches()))
        if context.first is not context.later and stretches and not stretches[0][1]:
            return self._beginning(stretches[0][0]) + self._encode(stretches[1:], self._longest)
        return self._encode(stretches, self._longest)

    def keep_always(self, texts: Iterable[str]) -> None:
        """Encode the constant texts of a template now, and keep them whatever the budget."""
        self.cache.keep_always({text: _packed(self._ordinary(self._context.later, text)) for text in texts if text})

    def _encode(self, stretches: Iterable[tuple[str, bool]], longest: int) -> bytes:
        """Encode stretches of which no ordinary one begins the prompt, those above the `longest` length in parts."""
        found: list[bytes] = []
        unknown: list[tuple[int, str]] = []
        special_ids, kept = self._special_ids, self.cache.get
        for stretch, is_special in stretches:
            if is_special:
                found.append(special_ids[stretch])
                continue
            if len(stretch) > longest:
                found.append(self._encode(((part, False) for part in parts(stretch)), sys.maxsize))
                continue
            ids = kept(stretch)
            if ids is None:
                unknown.append((len(found), stretch))
                ids = b""
            found.append(ids)
        if unknown:
            self._fill(found, unknown)
        return b"".join(found)

    def _beginning(self, stretch: str) -> bytes:
        """The IDs of a stretch that begins the prompt, for a tokenizer to which that matters."""
        key = _FIRST + stretch
        ids = self.cache.get(key)
        if ids is None:
            ids = _packed(self._ordinary(self._context.first, stretch))
            self.cache.put(key, ids)
        return ids

    def _fill(self, found: list[bytes], unknown: list[tuple[int, str]]) -> None:
        """Encode the (place, stretch) pairs in one batch, put the IDs in their places and into the cache."""
        later = self._context.later
        encodings = later.encode_batch_fast([stretch for _, stretch in unknown], add_special_tokens=False)
        for (place, stretch), encoding in zip(unknown, encodings, strict=True):
            ids = encoding.ids
            if not self._added_ids.isdisjoint(ids):
                ids = self._ordinary(later, stretch)
            found[place] = _packed(ids)
            self.cache.put(stretch, found[place])

    def _ordinary(self, twin: tokenizers.Tokenizer, stretch: str) -> list[int]:
        """Encode one stretch, whose text may be in the model's own vocabulary as what is elsewhere an added token.

        Where the model finds such a token the text is cut inside it, until none is left but single characters.
        """
        pieces = [stretch]
        while True:
            encodings = [twin.encode(pieces[0], add_special_tokens=False)]
            encodings += self._context.later.encode_batch(pieces[1:], add_special_tokens=False)
            cut = [part for piece, found in zip(pieces, encodings, strict=True) for part in self._cut(piece, found)]
            if len(cut) == len(pieces):
                return list(chain.from_iterable(found.ids for found in encodings))
            pieces = cut

    def _cut(self, piece: str, encoding: tokenizers.Encoding) -> list[str]:
        added = self._added_ids
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        cuts = [
            0,
            *(start + 1 for token_id, (start, end) in spans if token_id in added and end - start > 1),
            len(piece),
        ]
        return [piece[start:end] for start, end in pairwise(cuts)]


class _SpecialIds(dict[str, bytes]):
    """The packed ID of each special token. A spelling that is none raises RuntimeError."""

    def __missing__(self, spelling: str) -> bytes:
        problem = f"special token {quoted(spelling)} is not in the added vocabulary"
        raise RuntimeError(f"failed to encode conversation: {problem}")


def unpacked(packed_ids: bytes) -> list[int]:
    """The IDs of a packed prompt."""
    return memoryview(packed_ids).cast("I").tolist()


def _packed(ids: list[int]) -> bytes:
    return array("I", ids).tobytes()
