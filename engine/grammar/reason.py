"""What the grammar engine says is wrong, in one line for whoever wrote the grammar."""

from __future__ import annotations

import re

from llguidance import LLMatcher

_MAX_CHARS = 400
_SOURCE_PICTURE = re.compile(r"\n *\d+ \| |\n<")  # lines of the source that it found the error in, or a word instead


def reason_of(matcher: LLMatcher) -> str:
    """The first of it, without its picture of the source; "" when nothing is wrong."""
    return " ".join(_SOURCE_PICTURE.split(matcher.get_error())[0].split())[:_MAX_CHARS]
