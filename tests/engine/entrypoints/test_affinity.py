"""Affinity: all turns of a conversation give one number, other conversations give others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.entrypoints.affinity import SMALL_BODY_BYTES, affinity_of

SYSTEM = "You are a careful engineer. " * 300
TOOLS = [{"type": "function", "function": {"name": f"tool_{index}", "parameters": {}}} for index in range(40)]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def user_parts(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def user_role_last(text: str) -> dict[str, Any]:
    return {"content": text, "role": "user"}


def chat(messages: list[Any]) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": SYSTEM}, *messages], "model": "m", "tools": TOOLS}


def chat_tools_first(messages: list[Any]) -> dict[str, Any]:
    return {"model": "m", "tools": TOOLS, "messages": [{"role": "system", "content": SYSTEM}, *messages]}


def anthropic(messages: list[Any]) -> dict[str, Any]:
    return {"max_tokens": 9, "messages": messages, "model": "m", "system": SYSTEM, "tools": TOOLS}


def responses(messages: list[Any]) -> dict[str, Any]:
    return {"model": "m", "input": messages, "instructions": SYSTEM, "tools": TOOLS}


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
@pytest.mark.parametrize("body", [chat, chat_tools_first, anthropic, responses])
@pytest.mark.parametrize("first", [user, user_parts, user_role_last])
def test_the_next_turn_has_the_number_of_the_first_and_another_conversation_has_another(
    first: Any, body: Any, separators: tuple[str, str]
) -> None:
    def number(*messages: Any) -> int | None:
        return affinity_of(json.dumps(body(list(messages)), separators=separators).encode())

    answer = {"role": "assistant", "content": "Yes."}
    for text in ("hi", 'fix {this} "role": "user"', "long " * 100):
        numbers = {number(first(text)), number(first(text), answer, first("go on"))}
        assert len(numbers) == 1
        assert None not in numbers
        assert number(first(f"not {text}")) not in numbers


def test_a_small_body_may_go_anywhere() -> None:
    assert affinity_of(b"x" * SMALL_BODY_BYTES) is None


def test_a_body_without_a_user_message_is_known_by_how_it_begins() -> None:
    first = b'{"input": "summarise ' + b"x" * 5000
    assert affinity_of(first) == affinity_of(first + b"y") is not None
    assert affinity_of(first) != affinity_of(b'{"input": "translate ' + b"x" * 5000)
