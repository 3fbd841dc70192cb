"""What the special tokens beside an ordinary stretch do to it.

Most tokenizers encode each stretch between special tokens by itself. Some do not, and `tokenizer.json` tells which:

- a token that swallows white space (lstrip, rstrip) takes it from the stretches beside it;
- where only the very first word of a text gets a leading space (Metaspace, "first"), later stretches get none;
- a token that is looked for after normalization (normalized) does not interrupt the normalizer: what it puts in front
  of a text (Prepend) or takes from its ends (Strip), it does once for the stretches on both sides, and a token whose
  own spelling got something put in front takes that from the stretch before.

A stretch is given the form in which a twin tokenizer, one without added tokens, encodes it as the whole text would be.
"""

import json
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import Metaspace, PreTokenizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

Stretch = tuple[str, bool]
"""A text, and whether it is one special token."""

_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"


class StretchContext:
    """The twins of a tokenizer, and the form its stretches need.

    `first` encodes a stretch that begins the text, `later` any other. When `is_free`, the two are one and
    stretches need no settling.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        added = list(tokenizer.get_added_tokens_decoder().values())
        normalizer = tokenizer.normalizer
        self._strips_before = frozenset(token.content for token in added if token.lstrip)
        self._strips_after = frozenset(token.content for token in added if token.rstrip)
        joined = [token for token in added if token.normalized] if _reaches_over_tokens(normalizer, added) else []
        self._joined_leads = {token.content: _lead(normalizer, token.content) for token in joined}
        self._normalizers = _at_ends(normalizer) if joined else {}
        twin_normalizer = None if joined else normalizer
        self.later = _twin(tokenizer, twin_normalizer, _without_leading_space(tokenizer.pre_tokenizer))
        self.first = self.later
        if _puts_space_first(tokenizer.pre_tokenizer):
            self.first = _twin(tokenizer, twin_normalizer, tokenizer.pre_tokenizer)
        changes = joined or self._strips_before or self._strips_after
        self.is_free = not changes and self.first is self.later

    def settle(self, stretches: Sequence[Stretch]) -> list[Stretch]:
        """Return the stretches in the form that the twins encode; what becomes empty is left out."""
        settled: list[Stretch] = []
        for index, (text, is_special) in enumerate(stretches):
            if not is_special:
                before = stretches[index - 1][0] if index else None
                after = stretches[index + 1][0] if index + 1 < len(stretches) else None
                text = self._between(before, text, after)
            if text:
                settled.append((text, is_special))
        return settled

    def _between(self, before: str | None, text: str, after: str | None) -> str:
        """The form of an ordinary text between two special tokens, None where there is none."""
        joins_before, joins_after = before in self._joined_leads, after in self._joined_leads
        text = self._stripped(text, None if joins_before else before, None if joins_after else after)
        if self._normalizers and text:
            text = self._normalizers[not joins_before, not joins_after].normalize_str(text)
        if joins_after:
            text = text.removesuffix(self._joined_leads[str(after)])
        return self._stripped(text, before if joins_before else None, after if joins_after else None)

    def _stripped(self, text: str, before: str | None, after: str | None) -> str:
        if before in self._strips_after:
            text = text.lstrip(_WHITE_SPACE)
        if after in self._strips_before:
            text = text.rstrip(_WHITE_SPACE)
        return text


def _reaches_over_tokens(normalizer: Normalizer | None, added: Sequence[Any]) -> bool:
    """Whether stretches beside a normalized token have to be normalized with regard to each other."""
    if normalizer is None:
        return False
    strips = any(token.normalized and (token.lstrip or token.rstrip) for token in added)
    state = normalizer.__getstate__()
    return strips or b'"type":"Prepend"' in state or b'"type":"Strip"' in state


def _lead(normalizer: Normalizer | None, spelling: str) -> str:
    """What a normalizer puts in front of a special token's spelling."""
    normal = spelling if normalizer is None else normalizer.normalize_str(spelling)
    return normal.removesuffix(spelling) if normal.endswith(spelling) else ""


def _at_ends(normalizer: Normalizer | None) -> dict[tuple[bool, bool], Normalizer]:
    """Normalizers for a stretch, by whether it begins the text that is normalized and whether it ends it."""
    state: dict[str, Any] = {"type": "Sequence"} if normalizer is None else json.loads(normalizer.__getstate__())
    steps: list[dict[str, Any]] = state.get("normalizers", []) if state["type"] == "Sequence" else [state]
    variants: dict[tuple[bool, bool], Normalizer] = {}
    for begins in (False, True):
        for ends in (False, True):
            kept = [_at_end(step, begins, ends) for step in steps if begins or step["type"] != "Prepend"]
            variants[begins, ends] = Normalizers([])
            variants[begins, ends].__setstate__(json.dumps({"type": "Sequence", "normalizers": kept}).encode())
    return variants


def _at_end(step: dict[str, Any], begins: bool, ends: bool) -> dict[str, Any]:
    if step["type"] != "Strip":
        return step
    return {**step, "strip_left": step["strip_left"] and begins, "strip_right": step["strip_right"] and ends}


def _twin(
    tokenizer: tokenizers.Tokenizer, normalizer: Normalizer | None, pre_tokenizer: PreTokenizer | None
) -> tokenizers.Tokenizer:
    """A tokenizer without added tokens that shares the model (nothing is copied)."""
    twin = tokenizers.Tokenizer(tokenizer.model)
    if normalizer is not None:
        twin.normalizer = normalizer
    if pre_tokenizer is not None:
        twin.pre_tokenizer = pre_tokenizer
    return twin


def _puts_space_first(pre_tokenizer: PreTokenizer | None) -> bool:
    return pre_tokenizer is not None and b'"prepend_scheme":"first"' in pre_tokenizer.__getstate__()


def _without_leading_space(pre_tokenizer: PreTokenizer | None) -> PreTokenizer | None:
    """The same pre-tokenizer for a text that is not the first one."""
    if pre_tokenizer is None or not _puts_space_first(pre_tokenizer):
        return pre_tokenizer
    state = pre_tokenizer.__getstate__()
    later: PreTokenizer = PreTokenizers([]) if isinstance(pre_tokenizer, PreTokenizers) else Metaspace()
    later.__setstate__(state.replace(b'"prepend_scheme":"first"', b'"prepend_scheme":"never"'))
    return later
