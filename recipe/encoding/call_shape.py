"""How a chat template wants the tool calls of the history: found by rendering one call in every way.

Most take arguments as an object, some only as JSON text (those of DeepSeek V3 and R1 concatenate it), and some refuse
identifiers that are not nine letters and digits (Mistral). Where there is no text beside the calls, some write an empty
message for an empty text (R1 again), and others want a text in any case.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable
from typing import NamedTuple

from recipe.conversation import Conversation
from recipe.message import AssistantMessage, ToolMessage, UserMessage
from recipe.tool import ToolCall, ToolDefinition

SHORT_ID_CHARS = 9
_DIGITS = string.digits + string.ascii_letters


class CallShape(NamedTuple):
    """`text_arguments`: arguments are JSON text. `short_ids`: identifiers are nine letters and digits.

    `null_content`: the content of a message of calls alone is none. `in_text`: the template knows no calls, nor tools.
    """

    text_arguments: bool = False
    short_ids: bool = False
    null_content: bool = False
    in_text: bool = False


PLAIN = CallShape()
IN_TEXT = CallShape(text_arguments=True, in_text=True)
_SHAPES = [
    CallShape(text_arguments, short_ids, null_content)
    for text_arguments in (False, True)
    for short_ids in (False, True)
    for null_content in (True, False)
]
_PYTHON_REPRS = ("'probed'", "None")


def find_call_shape(render: Callable[[Conversation, CallShape], str]) -> CallShape:
    """The first shape that `render` takes and does not write as Python would; `PLAIN` where there is none."""
    call = ToolCall("call_of_a_template", "probe", '{"probed": 1}')
    conversation = Conversation(
        [UserMessage("probe"), AssistantMessage("", tool_calls=[call]), ToolMessage("probe", call.id)],
        tools=[ToolDefinition("probe", parameters={"type": "object", "properties": {}})],
    )
    return next((shape for shape in _SHAPES if _renders(render, conversation, shape)), PLAIN)


def short_id(call_id: str) -> str:
    """An identifier of nine letters and digits: the given one if it is such, else one that follows from it."""
    if len(call_id) == SHORT_ID_CHARS and call_id.isascii() and call_id.isalnum():
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest())
    digits = []
    for _ in range(SHORT_ID_CHARS):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)


def _renders(render: Callable[[Conversation, CallShape], str], conversation: Conversation, shape: CallShape) -> bool:
    try:
        rendered = render(conversation, shape)
    except Exception:  # whatever the template's own code raises
        return False
    return not any(written in rendered for written in _PYTHON_REPRS)
