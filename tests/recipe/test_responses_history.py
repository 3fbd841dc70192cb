"""Items of Responses requests as messages."""

from typing import Any

import pytest

from recipe.conversation import Message, SystemMessage
from recipe.errors import ConversionError
from recipe.protocol.responses.convert import ResponsesRequest
from recipe.request import ConversionOptions, ReasoningContentBehavior

V41, V4 = "DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro"
USER = {"type": "message", "role": "user", "content": "q"}
ANSWER = {"type": "message", "role": "assistant", "content": "a"}
PNG = "data:image/png;base64,AAAA"


def call(call_id: str, name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}", **fields}


def output(call_id: str | None, content: Any = "r") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": content}


def reasoning(*texts: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text} for text in texts]}


def search(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_search_call", "call_id": call_id, "execution": "client", "arguments": arguments}


def found(call_id: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_search_output", "call_id": call_id, "execution": "client", "tools": list(tools)}


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **fields}


def messages(*items: Any, model: str = V41, options: ConversionOptions | None = None, **fields: Any) -> list[Message]:
    request = ResponsesRequest({"model": model, "input": list(items), **fields})
    return request.convert(options or ConversionOptions()).conversation.messages


def shape(*items: Any, **fields: Any) -> list[Any]:
    """The messages as tuples: role and content, the reasoning of an assistant, the IDs of calls."""
    return [_shape(message) for message in messages(*items, **fields)]


def _shape(message: Message) -> Any:
    if message.role == "assistant":
        ids = "".join(call.id for call in message.tool_calls or ())
        return (message.content, message.reasoning_content, ids)
    return (message.role, message.content)


def complaint(*items: Any, **fields: Any) -> str:
    with pytest.raises(ConversionError) as caught:
        messages(*items, **fields)
    return str(caught.value)


def test_reasoning_texts_and_calls_that_follow_each_other_are_one_message() -> None:
    items = (reasoning("r1", "r2"), reasoning("r3"), ANSWER, ANSWER, call("c"), output("c"))
    assert shape(USER, *items) == [("user", "q"), ("a\n\na", "r1\nr2\nr3", "c"), ("tool", "r")]


def test_reasoning_after_a_text_starts_a_new_message() -> None:
    assert shape(ANSWER, reasoning("x"), ANSWER) == [("a", "", ""), ("a", "x", "")]


def test_an_empty_text_or_reasoning_does_not_separate() -> None:
    empty = {"role": "assistant", "content": ""}
    assert shape(ANSWER, reasoning(""), empty, ANSWER) == [("a\n\na", "", "")]
    assert shape(reasoning("y"), empty, reasoning("x"), ANSWER) == [("a", "y\nx", "")]
    assert shape(USER, reasoning(), USER) == [("user", "q"), ("user", "q")]


def test_calls_and_outputs_of_a_turn_are_ordered_by_id() -> None:
    items = (call("z"), call("y"), output("z", "rz"), call("x"), output("y", "ry"), output("x", "rx"))
    assert shape(*items) == [("", "", "xyz"), ("tool", "rx"), ("tool", "ry"), ("tool", "rz")]


def test_a_call_after_all_outputs_is_a_turn_of_its_own() -> None:
    assert shape(call("a"), output("a"), call("b"), output("b")) == [
        ("", "", "a"),
        ("tool", "r"),
        ("", "", "b"),
        ("tool", "r"),
    ]


@pytest.mark.parametrize(
    "item", [USER, ANSWER, reasoning("x"), reasoning(""), {"type": "web_search_call"}, output(None)]
)
def test_nothing_may_come_between_a_call_and_its_output(item: dict[str, Any]) -> None:
    assert complaint(call("a"), item, output("a")) == "No tool output found for tool call a."


def test_items_of_unknown_types_are_as_if_they_were_not_there() -> None:
    unknown = {"type": "computer_call", "role": "user", "content": 5}
    assert shape(call("a"), unknown, output("a")) == [("", "", "a"), ("tool", "r")]
    assert shape({"type": "item_reference", "id": "x"}) == []


def test_outputs_need_a_call_and_calls_one_output() -> None:
    assert complaint(call("a"), output("b")) == "No tool call found for tool output with call_id b."
    assert complaint(call("a"), output("a"), output("a")) == "Duplicate tool output for call_id: a."
    assert complaint(call("a"), output("a"), USER, call("a")) == "Duplicate 'call_id': a."
    assert complaint(call("a")) == "No tool output found for tool call a."
    assert complaint(USER, call("")).startswith("Invalid 'input[1].call_id': empty string.")


def test_an_output_without_an_id_stands_alone() -> None:
    (_, message, _) = messages(USER, output(None), ANSWER)
    assert (message.role, message.tool_call_id) == ("tool", None)


def test_the_input_of_a_custom_tool_becomes_an_argument() -> None:
    items = ({"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": 'x"\n'},)
    (assistant, tool) = messages(*items, {"type": "custom_tool_call_output", "call_id": "a"})
    assert assistant.tool_calls is not None
    assert assistant.tool_calls[0].arguments == '{"input":"x\\"\\n"}'
    assert tool.content == ""


def test_found_tools_follow_the_outputs_and_are_deferred() -> None:
    items = (search("z", q=1.0), call("a"), found("z", function("g", strict=False)), output("a"), ANSWER)
    request = ResponsesRequest({"model": V41, "input": list(items)}).convert(ConversionOptions())
    assistant, first, second, system, last = request.conversation.messages
    assert assistant.tool_calls is not None
    assert [call.arguments for call in assistant.tool_calls] == ["{}", '{"q":1.0}']
    assert first.content == "r"
    assert second.content == '[{"type":"function","name":"g","description":null,"parameters":null,"strict":false}]'
    assert isinstance(system, SystemMessage)
    assert [(tool.name, tool.defer_loading) for tool in system.tools or ()] == [("g", True)]
    assert [tool.name for tool in request.conversation.tools] == ["g"]
    assert last.content == "a"


def test_a_choice_that_drops_found_tools_drops_their_message() -> None:
    items = (search("s"), found("s", function("g"), function("h")))
    off = {"effort": "none"}
    assert [m.role for m in messages(*items, tool_choice="none")] == ["assistant", "tool"]
    *_, system = messages(*items, tool_choice={"type": "function", "name": "h"}, reasoning=off)
    assert isinstance(system, SystemMessage)
    assert [tool.name for tool in system.tools or ()] == ["h"]


def test_v4_has_no_tool_search() -> None:
    items = (call("a"), search("s"), found("s", function("")), output("a"))
    assert shape(*items, model=V4) == [("", "", "a"), ("tool", "r")]


def test_a_found_tool_of_unknown_type_cannot_be_shown() -> None:
    problem = "input[1]: the enum variant ResponsesTool::Unsupported cannot be serialized"
    assert complaint(search("s"), found("s", {"type": "mcp"})) == problem


def test_developers_are_systems_on_v41_and_users_on_v4() -> None:
    developer = {"role": "developer", "content": "d"}
    assert shape(developer) == [("system", "d")]
    assert shape(developer, model=V4) == [("user", "d")]


def test_images_are_placeholders_with_the_path_of_their_item() -> None:
    image = {"type": "input_image", "image_url": PNG, "detail": "low"}
    blocks = [{"type": "input_text", "text": "see"}, image, {"type": "input_file", "file_id": "f"}]
    (message,) = messages({"role": "user", "content": blocks})
    assert message.content == "see\n\n<｜image｜>\n\n[Unsupported Document]"
    assert [(s.kind, s.detail, s.path) for s in message.image_sources] == [("data_url", "low", "input[0]")]
    (plain,) = messages({"role": "user", "content": [image, {"type": "input_image"}]}, model=V4)
    assert plain.content == "[Unsupported Image]\n\n[Unsupported Image]"


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ({}, "input[0].content[1]: input_image must have image_url or file_id"),
        ({"image_url": ""}, "input[0].content[1]: input_image must have image_url or file_id"),
        ({"image_url": PNG, "file_id": "f"}, "input[0].content[1]: input_image cannot have both image_url and file_id"),
        (
            {"file_id": "f"},
            "input[0].content[1]: file_id is not supported. Pass the image as a base64 data url instead.",
        ),
    ],
)
def test_an_image_without_one_source_is_reported_before_a_bad_source(image: dict[str, Any], problem: str) -> None:
    blocks = [{"type": "input_image", "image_url": "ftp://x"}, {"type": "input_image", **image}]
    assert complaint({"role": "user", "content": blocks}) == problem


def test_assistants_have_no_images() -> None:
    item = {"role": "assistant", "content": [{"type": "input_image", "image_url": PNG}]}
    assert complaint(USER, item) == "input[1]: Image in assistant message is unsupported"


def test_a_bad_image_in_an_output_is_reported_before_its_id_but_after_that_of_a_custom_output() -> None:
    bad = [{"type": "input_image", "image_url": "zz"}]
    custom = {"type": "custom_tool_call_output", "call_id": "b", "output": bad}
    assert complaint(call("a"), output("b", bad)) == "input[1]: Unsupported image_url format"
    assert complaint(call("a"), custom) == "No tool call found for tool output with call_id b."


def test_missing_reasoning_is_refused_only_where_it_had_to_be_passed_back() -> None:
    reject = ConversionOptions(reasoning_content_behavior=ReasoningContentBehavior.Reject)
    problem = "The `reasoning_text` in the thinking mode must be passed back to the API."
    assert complaint(USER, call("a"), output("a"), options=reject) == problem
    assert complaint(USER, ANSWER, options=reject, tools=[function("f")], tool_choice="none") == problem
    assert shape(USER, ANSWER, options=reject) == [("user", "q"), ("a", "", "")]
    assert shape(ANSWER, USER, options=reject, tools=[function("f")]) == [("a", "", ""), ("user", "q")]
    assert shape(USER, ANSWER, options=reject, tools=[{"type": "mcp"}]) == [("user", "q"), ("a", "", "")]


def test_instructions_come_first_and_empty_ones_are_none() -> None:
    assert shape(USER, instructions="i") == [("system", "i"), ("user", "q")]
    assert shape(USER, instructions="") == [("user", "q")]
    assert complaint(instructions="i") == "Input items array must not be empty"
    with pytest.raises(ConversionError, match="Either input or instructions must be provided"):
        ResponsesRequest({"model": V41, "instructions": ""}).convert(ConversionOptions())
