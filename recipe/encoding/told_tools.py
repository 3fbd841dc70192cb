"""Tools for a chat template that knows nothing of them: told in the instructions, called in text.

The markup is that of Hermes, which most models have seen. What users wrote comes wrapped already; the rest is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recipe.encoding.pyjson import python_json

_INTRODUCTION = "## Tools:\n\nYou can call these functions:\n"
_EXPLANATION = """

For each call, write the name and the arguments as JSON between tags, and nothing behind the last call:
<tool_call>
{"name": "FUNCTION", "arguments": {"PARAMETER": "VALUE"}}
</tool_call>"""


def tools_instruction(tools: Sequence[dict[str, Any]]) -> str:
    """What is told of `tools`, which have the shape of the Chat Completions API."""
    return _INTRODUCTION + "\n".join(python_json(tool["function"]) for tool in tools) + _EXPLANATION


def calls_in_text(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with calls as a part of their content, and the results of calls in the next user's message.

    The arguments of calls are JSON text. Results in a row come in one message, since many templates want user and
    assistant to take turns.
    """
    told: list[dict[str, Any]] = []
    in_results = False
    for message in messages:
        if message["role"] != "tool":
            told.append(_with_calls(message))
        elif in_results:
            told[-1]["content"] += f"\n{_result(message)}"
        else:
            told.append({"role": "user", "content": _result(message)})
        in_results = message["role"] == "tool"
    return told


def _with_calls(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    texts = [message["content"], *(_call(call["function"]) for call in message["tool_calls"])]
    return rest | {"content": "\n".join(filter(None, texts))}


def _call(function: dict[str, Any]) -> str:
    return (
        f'<tool_call>\n{{"name": {python_json(function["name"])}, "arguments": {function["arguments"]}}}\n</tool_call>'
    )


def _result(message: dict[str, Any]) -> str:
    return f"<tool_response>\n{message['content']}\n</tool_response>"
