"""Compares two outcomes: equal means equal as JSON, with 1 and 1.0 apart and the order of keys ignored.

Wording is free in two places only (`same_text`): how a decoder puts what is wrong with a body, and how a schema
validator puts what is wrong with a schema.
"""

import json
import re
from typing import Any

from tests.oracle.outcome import ALWAYS_CRASH, CRASH_TYPES, Json

ARRAY_FOR_OBJECT = re.compile(r"invalid request body: Expected `object[^`]*`, got `array`")
BODY_ERROR = re.compile(r"invalid (?:JSON request|request body): ")
MISSING_FIELD = re.compile(r"missing field `([^`]+)`")
SCHEMA_ERROR = re.compile(r"(.*?(?:Invalid schema for function '[^']*'|Invalid json schema): )(.*)", re.S)
VALIDATOR_SAYS = re.compile(
    r"is not of types? |is not valid under|has non-unique|is (?:less|greater) than|is not a \\?\"|does not exist"
    r"|has (?:less|more) than|is not one of|is a required property|does not match|is not a multiple|is valid under"
)


def same_text(want: str, got: str) -> bool:
    """Equal, or both the words of a decoder or a schema validator.

    A body that does not decode: the same prefix, and a missing field is named. A schema that the validator refuses: the
    same text up to the validator's own words.
    """
    if want == got:
        return True
    if body := BODY_ERROR.match(want):
        missing = MISSING_FIELD.search(want)
        return got.startswith(body.group()) and (not missing or missing.group(1) in got)
    schema = SCHEMA_ERROR.match(want)
    return bool(schema and VALIDATOR_SAYS.search(schema.group(2)) and got.startswith(schema.group(1)))


def equal(want: Any, got: Any) -> bool:
    if type(want) is not type(got):
        return False
    if isinstance(want, dict):
        return want.keys() == got.keys() and all(equal(value, got[key]) for key, value in want.items())
    if isinstance(want, list):
        return len(want) == len(got) and all(map(equal, want, got))
    if isinstance(want, str):
        return same_text(want, got)
    return bool(want == got)


def error_types(outcome: Any) -> set[str]:
    """The classes of all exceptions recorded anywhere in an outcome."""
    if isinstance(outcome, list):
        return set().union(*map(error_types, outcome))
    if not isinstance(outcome, dict):
        return set()
    found = set().union(*map(error_types, outcome.values()))
    is_record = "message" in outcome and "stage" in outcome and isinstance(outcome.get("type"), str)
    return found | {outcome["type"]} if is_record else found


def is_array_for_object(outcome: Json) -> bool:
    """Whether a body was refused for an array where an object belongs; the reference reads such arrays as objects."""
    error = outcome.get("error", {})
    return error.get("stage") == "parse" and bool(ARRAY_FOR_OBJECT.match(error["message"]))


def verdict(want: Json, got: Json) -> str:
    """`identical`, `different`, `crashed` (an error nobody should meet), or `skipped`.

    Skipped is what nobody copies: a panic of the reference, and an array that stands for an object.
    """
    wanted, found = error_types(want), error_types(got)
    if "PanicException" in wanted:
        return "skipped"
    if found & ALWAYS_CRASH or (found - wanted) & CRASH_TYPES:
        return "crashed"
    if equal(want, got):
        return "identical"
    return "skipped" if is_array_for_object(got) else "different"


def differences(want: Any, got: Any, path: str = "") -> list[str]:
    """What differs, one line each: the path, the wanted value, the value we got."""
    if equal(want, got):
        return []
    if isinstance(want, dict) and isinstance(got, dict):
        keys = [*want, *(key for key in got if key not in want)]
        return [
            line
            for key in keys
            for line in differences(want.get(key, "<absent>"), got.get(key, "<absent>"), f"{path}.{key}")
        ]
    if isinstance(want, list) and isinstance(got, list):
        pairs = enumerate(zip(want, got, strict=False))
        lines = [line for i, (a, b) in pairs for line in differences(a, b, f"{path}[{i}]")]
        return lines if len(want) == len(got) else [*lines, f"{path}: {len(want)} items, got {len(got)}"]
    return [f"{path or '.'}\n    want: {shown(want, got)}\n    got:  {shown(got, want)}"]


def shown(value: Any, other: Any, width: int = 240) -> str:
    """The value, of long strings the surroundings of the first difference."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= width:
        return text
    pairs = enumerate(zip(text, other, strict=False)) if isinstance(other, str) else iter(())
    start = max(0, next((i for i, (a, b) in pairs if a != b), 0) - 40)
    return f"...[{start}:] {text[start : start + width]}... ({len(text)} characters)"
