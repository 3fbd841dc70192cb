"""The arguments of a tool call, as a value."""

from recipe.protocol.body import strict_json
from recipe.protocol.json_text import compact_json


def arguments_json(text: str) -> str | None:
    """Argument text as compact JSON; None when it is no JSON, as that of a call that was cut off."""
    try:
        return compact_json(strict_json(text.encode()))
    except ValueError:
        return None
