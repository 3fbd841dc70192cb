"""Identifiers of tool calls: `call_`, the two-digit index, and 24 random characters, the last four of them digits."""

import random
import string

_LETTERS = string.ascii_letters + string.digits


def tool_call_id(index: int, skipped_thinking: bool) -> str:
    """A new identifier; `ET_` marks a call of a thinking model that did not think before it."""
    mark = "ET_" if skipped_thinking else ""
    return f"call_{index:02d}_{mark}{''.join(random.choices(_LETTERS, k=20))}{random.randrange(10_000):04d}"
