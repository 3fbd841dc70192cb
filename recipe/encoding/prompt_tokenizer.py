"""Prompts to token IDs.

Special tokens are looked up in the added vocabulary. The ordinary stretches between them are encoded in one batch by a
twin of the tokenizer that shares its model but has no added tokens: whatever is spelled there stays ordinary text.
What the library does at the edges of an added token is done here:

- a token that swallows white space (lstrip, rstrip) takes it from the stretches beside it;
- where only the very first word of a text gets a leading space (Metaspace, "first"), later stretches use a second twin.

Short stretches, the wording of templates above all, recur in every prompt; their IDs are kept.
"""

from collections.abc import Sequence
from itertools import chain, pairwise

import tokenizers
from tokenizers.pre_tokenizers import Metaspace, PreTokenizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

from recipe.argument import quoted
from recipe.prompt import Prompt

_KEPT_LENGTH = 256
_KEPT_STRETCHES = 4096


class PromptTokenizer:
    """Encodes prompts, without adding a BOS token. Raises RuntimeError for a tokenizer that pads its output."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        if tokenizer.padding is not None:
            raise RuntimeError("the tokenizer pads its encodings, and a prompt must not be padded")
        added = tokenizer.get_added_tokens_decoder()
        self._special_ids = {token.content: [token_id] for token_id, token in added.items()}
        self._added_ids = frozenset(added)
        self._strips_left = frozenset(token.content for token in added.values() if token.lstrip)
        self._strips_right = frozenset(token.content for token in added.values() if token.rstrip)
        self._first = _twin(tokenizer, tokenizer.pre_tokenizer)
        self._later = _twin(tokenizer, _without_leading_space(tokenizer.pre_tokenizer))
        self._kept: dict[str, list[int]] = {}

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the IDs of `prompt`. Raises RuntimeError when it has a special token that the vocabulary lacks."""
        stretches = list(prompt.stretches())
        if self._strips_left or self._strips_right:
            stretches = self._stripped(stretches)
        ids: list[list[int]] = []
        if stretches and not stretches[0][1]:
            ids.append(self._ordinary(self._first, stretches.pop(0)[0]))
        unknown: list[tuple[int, str]] = []
        for stretch, is_special in stretches:
            known = self._special(stretch) if is_special else self._kept.get(stretch)
            if known is None:
                unknown.append((len(ids), stretch))
            ids.append(known or [])
        if unknown:
            self._fill(ids, unknown)
        return list(chain.from_iterable(ids))

    def _special(self, spelling: str) -> list[int]:
        try:
            return self._special_ids[spelling]
        except KeyError:
            problem = f"special token {quoted(spelling)} is not in the added vocabulary"
            raise RuntimeError(f"failed to encode conversation: {problem}") from None

    def _fill(self, ids: list[list[int]], unknown: list[tuple[int, str]]) -> None:
        """Encode the (place, stretch) pairs in one batch, put the IDs in their places and keep those of short ones."""
        if len(self._kept) >= _KEPT_STRETCHES:
            self._kept.clear()
        encodings = self._later.encode_batch_fast([stretch for _, stretch in unknown], add_special_tokens=False)
        for (place, stretch), encoding in zip(unknown, encodings, strict=True):
            found = encoding.ids
            if not self._added_ids.isdisjoint(found):
                found = self._ordinary(self._later, stretch)
            ids[place] = found
            if len(stretch) <= _KEPT_LENGTH:
                self._kept[stretch] = found

    def _ordinary(self, twin: tokenizers.Tokenizer, stretch: str) -> list[int]:
        """Encode one stretch, whose text may be in the model's own vocabulary as what is elsewhere an added token.

        Where the model finds such a token the text is cut inside it, until none is left but single characters.
        """
        pieces = [stretch]
        while True:
            encodings = [twin.encode(pieces[0], add_special_tokens=False)]
            encodings += self._later.encode_batch(pieces[1:], add_special_tokens=False)
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

    def _stripped(self, stretches: Sequence[tuple[str, bool]]) -> list[tuple[str, bool]]:
        """Take from ordinary stretches the white space that the special tokens beside them swallow."""
        stripped: list[tuple[str, bool]] = []
        for index, (stretch, is_special) in enumerate(stretches):
            if not is_special:
                if index and stretches[index - 1][0] in self._strips_right:
                    stretch = stretch.lstrip()
                if index + 1 < len(stretches) and stretches[index + 1][0] in self._strips_left:
                    stretch = stretch.rstrip()
            if stretch:
                stripped.append((stretch, is_special))
        return stripped


def _twin(tokenizer: tokenizers.Tokenizer, pre_tokenizer: PreTokenizer | None) -> tokenizers.Tokenizer:
    """A tokenizer without added tokens that shares the model (nothing is copied) and the normalizer."""
    twin = tokenizers.Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        twin.normalizer = tokenizer.normalizer
    if pre_tokenizer is not None:
        twin.pre_tokenizer = pre_tokenizer
    return twin


def _without_leading_space(pre_tokenizer: PreTokenizer | None) -> PreTokenizer | None:
    """The same pre-tokenizer for a text that is not the first one."""
    if pre_tokenizer is None:
        return None
    state = pre_tokenizer.__getstate__()
    if b'"prepend_scheme":"first"' not in state:
        return pre_tokenizer
    later: PreTokenizer = PreTokenizers([]) if isinstance(pre_tokenizer, PreTokenizers) else Metaspace()
    later.__setstate__(state.replace(b'"prepend_scheme":"first"', b'"prepend_scheme":"never"'))
    return later
