"""Places at which a long text may be cut so that its parts encode to exactly the IDs of the whole.

For every pre-tokenizer of the GPT family a word ends after a newline between two visible characters (the second no
slash), and before a single space between a visible character and a letter: no branch of their patterns reaches over
these places, and what stands before is split the same whether or not something follows. That is read off the pattern,
branch by branch; a tokenizer with a branch that is not known here gets no cuts. Cuts depend on the text before them
alone, so a text that grows keeps its old parts. Besides, short texts are encoded faster than long ones.
"""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

WHOLE_LENGTH = 8192
"""Texts up to this length, in characters, are not worth cutting."""
_PART_LENGTH = 4096

_CUT = re.compile(r"\n(?<=\S\n)(?=[^\s/])|(?<=\S)(?= [^\W\d_])")
_BRANCHES = frozenset(
    (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        *(r"'s", r"'t", r"'re", r"'ve", r"'m", r"'ll", r"'d"),
        *(r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+"),
        *(r"\p{N}", r"\p{N}{1,3}"),
        r"[一-龥぀-ゟ゠-ヿ]+",
        r" ?[\p{P}\p{S}]+[\r\n]*",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)  # fmt: skip
_TOP_LEVEL_BAR = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\((?:[^()\\]|\\.)*\)|(\|)", re.DOTALL)
_NEWLINE_NAMES = str.maketrans({"\n": r"\n", "\r": r"\r"})


def allows_cuts(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether texts of this tokenizer may be cut; judged by its normalizer and pre-tokenizer alone."""
    steps = _steps(tokenizer.pre_tokenizer, "pretokenizers")
    return (
        all(step["type"] == "NFC" for step in _steps(tokenizer.normalizer, "normalizers"))
        and any(map(_splits_words, steps))
        and all(map(_is_known, steps))
    )


def parts(text: str) -> Iterator[str]:
    """Yield `text` in parts of about 4,096 characters or more, as its lines allow."""
    start = 0
    while len(text) - start > _PART_LENGTH and (cut := _CUT.search(text, start + _PART_LENGTH)):
        yield text[start : cut.end()]
        start = cut.end()
    yield text[start:]


def _steps(component: PreTokenizer | Normalizer | None, inner: str) -> list[dict[str, Any]]:
    return [] if component is None else _flat(json.loads(component.__getstate__()), inner)


def _flat(step: dict[str, Any], inner: str) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    return [flat for part in step[inner] for flat in _flat(part, inner)]


def _splits_words(step: dict[str, Any]) -> bool:
    """Whether this step is the one that ends a word at every newline."""
    if step["type"] == "ByteLevel":
        return bool(step["use_regex"])
    return step["type"] == "Split" and r"\s+(?!\S)" in _branches(step["pattern"].get("Regex", ""))


def _is_known(step: dict[str, Any]) -> bool:
    if step["type"] == "ByteLevel":
        return not step["add_prefix_space"]
    if step["type"] == "Digits":
        return True
    if step["type"] != "Split" or step["behavior"] != "Isolated" or step["invert"]:
        return False
    return _BRANCHES.issuperset(_branches(step["pattern"].get("Regex", "")))


def _branches(pattern: str) -> list[str]:
    """The alternatives of a pattern, with line breaks inside classes by their names."""
    bars = [match.start() for match in _TOP_LEVEL_BAR.finditer(pattern) if match[1]]
    bounds = [-1, *bars, len(pattern)]
    found = [pattern[start + 1 : end] for start, end in pairwise(bounds)]
    return [branch.translate(_NEWLINE_NAMES) for branch in found]
