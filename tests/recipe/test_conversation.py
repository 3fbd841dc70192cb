"""Conversations, messages, tools and image sources as callers construct them."""

import math
from typing import Any

import deepseek_recipe
import pytest

import recipe.conversation as conversation
from recipe.conversation import (
    AssistantMessage,
    BytesImageSource,
    Conversation,
    DataUrlImageSource,
    ImageSource,
    LatestReminderMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UrlImageSource,
    UserMessage,
)

URL = UrlImageSource("https://example.org/a.png")


def build(module: Any, expression: str) -> object:
    return eval(expression, {**vars(module), "inf": math.inf, "nan": math.nan})


REPRS = [
    "UserMessage('hi')",
    "UserMessage('quo\"te \\\\ \\n \\t \\0 \\x7f \\u200b e\\u0301 \\U0001f600', [UrlImageSource('u')])",
    "SystemMessage('s', None, [ToolDefinition('t')])",
    "AssistantMessage('a', 'b', [ToolCall('1', 'n', '{}')], True)",
    "ToolMessage('t')",
    "ToolMessage('t', 'i')",
    "LatestReminderMessage('x')",
    "ToolCall('1', 'n', '{\"a\":1}')",
    "ToolDefinition('a', 'd\"', {}, True)",
    "DataUrlImageSource('d', path='p')",
    "BytesImageSource(b'ab', 'low')",
    "Conversation()",
    "Conversation([UserMessage('x')], response_schema={}, tools=[ToolDefinition('a')], reasoning_effort='low')",
    "Conversation(response_regex='a', thinking_mode=False, tool_choice='none')",
]


@pytest.mark.parametrize("expression", REPRS)
def test_reprs_are_those_of_the_reference(expression: str) -> None:
    assert repr(build(conversation, expression)) == repr(build(deepseek_recipe, expression))


WRONG = [
    "UserMessage(5)",
    "UserMessage()",
    "UserMessage('a', [5])",
    "UserMessage('a', 'x')",
    "UserMessage('a', {})",
    "UserMessage('a', image_token='')",
    "UserMessage('\\ud800')",
    "AssistantMessage('a', prefix=1)",
    "AssistantMessage('a', None, [1])",
    "ToolMessage('a', 5)",
    "ToolDefinition('a', strict=1)",
    "ToolDefinition('a', None, None, None, None)",
    "ToolDefinition('a', parameters={1: 2})",
    "ToolDefinition('a', parameters={'x': {1}})",
    "ToolDefinition('a', parameters={'x': b''})",
    "ToolDefinition('a', parameters={'x': nan})",
    "ToolDefinition('a', parameters={'x': -inf})",
    "ToolDefinition('a', parameters={'x': 2**64})",
    "ToolDefinition('a', parameters={'x': -2**63 - 1})",
    "ToolDefinition('a', parameters={'\\udfff': 1})",
    "Message()",
    "ImageSource()",
    "UrlImageSource('u', 'zz')",
    "UrlImageSource('u', None)",
    "BytesImageSource('ab')",
    "BytesImageSource([256])",
    "BytesImageSource(['a'])",
    "Conversation([5])",
    "Conversation('')",
    "Conversation(None, True)",
    "Conversation(thinking_mode=1)",
    "Conversation(response_format='regex')",
    "Conversation(response_schema={}, response_regex='x')",
    "Conversation(response_format='json_object', response_schema={})",
    "Conversation(response_format='json_object', response_schema={}, response_regex='')",
    "Conversation(tool_choice='any')",
    "Conversation(reasoning_effort='none', tool_choice='any')",
]


@pytest.mark.parametrize("expression", WRONG)
def test_wrong_arguments_raise_what_the_reference_raises(expression: str) -> None:
    with pytest.raises(Exception) as theirs:
        build(deepseek_recipe, expression)
    with pytest.raises(theirs.type) as ours:
        build(conversation, expression)
    if theirs.type is ValueError:
        assert str(ours.value) == str(theirs.value)


def test_the_first_occurrences_of_the_image_token_are_the_placeholders() -> None:
    message = UserMessage("a<｜image｜>b<｜image｜>c<｜image｜>", [URL, URL])
    assert message.image_ranges == ((1, 10), (11, 20))
    assert len(message.image_sources) == 2


def test_occurrences_of_the_image_token_do_not_overlap() -> None:
    assert UserMessage("XXX", [URL, URL], image_token="XX").image_ranges == ((0, 2),)


def test_joining_user_messages_moves_the_placeholders_of_the_second() -> None:
    joined = UserMessage("a<｜image｜>", [URL]).joined(UserMessage("<｜image｜>", [URL]))
    assert joined.content == "a<｜image｜>\n\n<｜image｜>"
    assert [joined.content[start:end] for start, end in joined.image_ranges] == ["<｜image｜>"] * 2
    assert joined.image_sources == [URL, URL]


def test_values_that_a_role_does_not_have_are_fixed() -> None:
    for message in (SystemMessage("a"), UserMessage("a"), ToolMessage("a"), LatestReminderMessage("a")):
        assert isinstance(message, Message)
        assert (message.reasoning_content, message.tool_calls, message.prefix) == (None, None, False)
        assert message.image_sources == []


def test_messages_cannot_be_changed() -> None:
    message = AssistantMessage("a", tool_calls=[ToolCall("1", "n", "{}")])
    with pytest.raises(AttributeError):
        message.content = "b"  # type: ignore[misc]
    calls = message.tool_calls
    assert calls is not None
    calls.clear()
    assert len(message.tool_calls or ()) == 1


def test_tool_parameters_become_plain_json() -> None:
    class Number(int):
        pass

    tool = ToolDefinition("a", parameters={"x": (1, 2.5, None, True), "n": Number(7)})
    assert tool.parameters == {"x": [1, 2.5, None, True], "n": 7}
    assert type(tool.parameters["n"]) is int


def test_tool_parameters_nest_128_deep_and_no_deeper() -> None:
    def nested(depth: int) -> list[Any]:
        value: list[Any] = []
        for _ in range(depth - 1):
            value = [value]
        return value

    assert ToolDefinition("a", parameters=nested(128)).parameters == nested(128)
    with pytest.raises(RecursionError, match="128"):
        ToolDefinition("a", parameters=nested(129))


def test_the_class_of_all_image_sources_has_the_members_of_each() -> None:
    assert all(hasattr(ImageSource, name) for name in ("kind", "detail", "path", "data_url", "url", "data"))


def test_image_sources_have_the_value_of_their_kind_alone() -> None:
    sources: list[ImageSource] = [DataUrlImageSource("d"), UrlImageSource("u"), BytesImageSource(bytearray(b"b"))]
    assert [(source.data_url, source.url, source.data) for source in sources] == [
        ("d", None, None),
        (None, "u", None),
        (None, None, b"b"),
    ]
    assert [source.kind for source in sources] == ["data_url", "url", "bytes"]


def test_the_response_format_follows_from_schema_and_regex() -> None:
    assert Conversation(response_schema=False).response_format == "json_schema"
    assert Conversation(response_regex="").response_format == "regex"
    assert Conversation(response_schema=None).response_format == "text"
