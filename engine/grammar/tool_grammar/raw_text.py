"""What schemas ask of strings, as Lark terminals over the raw text: no quotes, no escapes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import llguidance

from engine.backend import ConstraintRefusedError
from engine.grammar.vocabulary import literal

_ANYTHING = "(?s:.*)"
_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_GROUP = "[0-9a-fA-F]{1,4}"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "email": rf"[a-zA-Z0-9!#$%&'*+\/=?^_`{{|}}~-]+(\.[a-zA-Z0-9!#$%&'*+\/=?^_`{{|}}~-]+)*@{_LABEL}(\.{_LABEL})*",
    "hostname": rf"{_LABEL}(\.{_LABEL})*",
    "ipv4": rf"{_OCTET}(\.{_OCTET}){{3}}",
    "ipv6": "|".join(
        [f"({_GROUP}:){{7}}{_GROUP}"]
        + [f"({_GROUP}(:{_GROUP}){{0,{left - 1}}})?::({_GROUP}(:{_GROUP}){{0,{5 - left}}})?" for left in range(1, 6)]
        + [f"::({_GROUP}(:{_GROUP}){{0,6}})?", f"{_GROUP}(:{_GROUP}){{5}}::({_GROUP})?", f"({_GROUP}:){{1,7}}:"]
    ),
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}


def raw_text(schemas: list[dict[str, Any]], where: str, is_promise: bool) -> str:
    """The terminal of text that one of `schemas` allows.

    Raises `ConstraintRefusedError` for a keyword that cannot be enforced; without a promise it is left out.
    """
    alternatives = [" & ".join(_conditions(schema, where, is_promise)) for schema in schemas]
    return f"({' | '.join(f'({alternative})' for alternative in alternatives)})"


def search_pattern(pattern: str) -> str | None:
    """A pattern that matches whole texts in which `pattern` is found; None where it looks around or back."""
    if any(_LOOKS_ELSEWHERE.fullmatch(piece) for piece in _PIECE.findall(pattern)):
        return None
    wholes = []
    for alternative in _alternatives(pattern):
        starts, ends = alternative.startswith("^"), re.search(r"(?<!\\)(\\\\)*\$$", alternative) is not None
        body = alternative[starts : len(alternative) - ends]
        if _ANCHOR.search(_CLASS_OR_ESCAPE.sub("", body)):
            return None
        wholes.append(f"{'' if starts else _ANYTHING}(?:{body}){'' if ends else _ANYTHING}")
    return "|".join(wholes)


def _conditions(schema: dict[str, Any], where: str, is_promise: bool) -> Iterator[str]:
    if "enum" in schema:
        yield f"({' | '.join(literal(text) for text in schema['enum'])})"
        return
    low, high = schema.get("minLength", 0), schema.get("maxLength", "")
    is_bounded = bool(low) or high != ""
    yield f"/(?s:.{{{low},{high}}})/" if is_bounded else f"/{_ANYTHING}/"
    for name, whole in (("pattern", _whole_pattern(schema)), ("format", _whole_format(schema))):
        if whole is not None:
            yield f"/{whole}/"
        elif name in schema and is_promise:
            raise ConstraintRefusedError(f"{where} cannot be enforced: keyword {name!r} ({schema[name]!r:.200})")


def _whole_pattern(schema: dict[str, Any]) -> str | None:
    pattern = schema.get("pattern")
    whole = search_pattern(pattern) if isinstance(pattern, str) else None
    return None if whole is None else llguidance.regex_to_lark(whole, "dw")


def _whole_format(schema: dict[str, Any]) -> str | None:
    return _FORMATS.get(schema.get("format", ""))


_CLASS_OR_ESCAPE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_ANCHOR = re.compile(r"[\^$]|\(\?[=!<]")
_LOOKS_ELSEWHERE = re.compile(r"\\[bBAzZGk1-9]")
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def _alternatives(pattern: str) -> list[str]:
    """The pattern cut at the bars that are in no group and no class."""
    alternatives, depth = [""], 0
    for match in _PIECE.finditer(pattern):
        piece = match[0]
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and not depth:
            alternatives.append("")
        else:
            alternatives[-1] += piece
    return alternatives
