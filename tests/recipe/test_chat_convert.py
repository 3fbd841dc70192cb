"""Chat Completions requests become conversations, or are refused for the first broken rule."""

from typing import Any

import pytest

from recipe.errors import ConversionError
from recipe.prompt import SpecialTokens
from recipe.protocol.chat_completions.convert import ChatCompletionRequest
from recipe.request import ConversationRequest, ConversionOptions, ReasoningContentBehavior
from recipe.stream.parsing_options import ThinkingInitialStage

FLASH, PRO = "DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro"
USER = {"role": "user", "content": "some json"}
OFF = {"type": "disabled"}


def convert(*messages: Any, options: ConversionOptions | None = None, **fields: Any) -> ConversationRequest:
    body = {"model": FLASH, "messages": list(messages) or [USER], **fields}
    return ChatCompletionRequest(body).convert(options or ConversionOptions())


def problem(*messages: Any, **fields: Any) -> str:
    with pytest.raises(ConversionError) as caught:
        convert(*messages, **fields)
    return str(caught.value)


def calling(*ids: str, **fields: Any) -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "tool_calls": calls, **fields}


def result(call_id: str, content: Any = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def tool(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def image(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def test_every_role_becomes_its_message_in_request_order() -> None:
    request = convert(
        {"role": "system", "content": "s"},
        USER,
        calling("a", content=None, reasoning_content="why"),
        result("a"),
        {"role": "latest_reminder", "content": "l"},
    )
    messages = request.conversation.messages
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool", "latest_reminder"]
    assert messages[2].content == "" and messages[2].reasoning_content == "why"
    assert messages[3].tool_call_id == "a"


def test_a_request_is_converted_once_even_if_that_fails() -> None:
    request = ChatCompletionRequest({"model": "?", "messages": []})
    assert request.model == "?"
    with pytest.raises(ConversionError):
        request.convert(ConversionOptions())
    for use in (lambda: request.model, lambda: request.convert(ConversionOptions())):
        with pytest.raises(RuntimeError, match="protocol request has been consumed"):
            use()


def test_blocks_are_joined_by_blank_lines_and_images_become_placeholders() -> None:
    blocks = user(text("a <｜image｜>"), image("https://e.com/a.png", detail="low"), text("b"))
    message = convert(blocks).conversation.messages[0]
    assert message.content == "a <｜image｜>\n\n<｜image｜>\n\nb"
    assert [message.content[start:end] for start, end in message.image_ranges] == ["<｜image｜>"]
    assert message.image_ranges[0][0] == 13  # the typed spelling is no placeholder
    [source] = message.image_sources
    assert (source.url, source.detail, source.path) == ("https://e.com/a.png", "low", ".messages[0]")


def test_placeholders_have_the_spelling_of_the_options() -> None:
    options = ConversionOptions().with_special_tokens(SpecialTokens(image="<i>"))
    assert convert(user(image("http://x")), options=options).conversation.messages[0].content == "<i>"


def test_the_model_without_images_gets_a_note_for_any_of_them() -> None:
    blocks = user(image("no url"), {"type": "file", "file_id": "f"})
    message = convert(blocks, model=PRO).conversation.messages[0]
    assert message.content == "[Unsupported Image]\n\n[Unsupported Image]" and not message.image_sources


@pytest.mark.parametrize(
    "url",
    ["data:image/png;base64,AAAA", "DATA:image/PNG;x=y;base64,AA A", "data:image/webp;base64,", "HTTPS://e"]
    + ["data:image/png;\tbase64,AAAA", "data:image/png;\fbase64,%00"],
)
def test_image_urls_are_http_or_base64_data(url: str) -> None:
    source = convert(user(image(url))).conversation.messages[0].image_sources[0]
    assert url in (source.data_url, source.url)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (image("ftp://x"), "Unsupported image_url format"),
        (image("data:image/png,abc"), "Unsupported image_url format"),
        (image("data:image/png;base64,A"), "Invalid base64 data"),
        (image("data:image/png;base64,-_-_"), "Invalid base64 data"),
        (
            image("data:image/png\f;base64,AAAA"),
            "You have uploaded an unsupported image. Please make sure your image is valid and has one of the following "
            "formats: webp, png, jpeg, and gif.",
        ),
        (
            image("data:image/svg+xml;base64,AAAA"),
            "You have uploaded an unsupported image. Please make sure your image is valid and has one of the following "
            "formats: webp, png, jpeg, and gif.",
        ),
        ({"type": "file"}, "file must have a file_id or file_data"),
        ({"type": "file", "file_id": "f", "file_data": "d"}, "file cannot have both file_id and file_data"),
        ({"type": "file", "file_id": "f", "filename": "n"}, "file cannot have filename when file_id is present"),
        ({"type": "file", "file_id": "f"}, "file_id is not supported. Pass the image as a base64 data url instead."),
        ({"type": "file", "file_data": "AAAA"}, "file_data is not a valid base64 data url"),
        (
            {"type": "file", "file_data": "data:application/pdf;base64,AAAA"},
            "You have uploaded an unsupported file. Please make sure your file is valid and has one of the following "
            "formats: webp, png, jpeg, and gif.",
        ),
    ],
)
def test_an_image_that_cannot_be_used_is_refused_with_its_message(block: Any, expected: str) -> None:
    assert problem(USER, user(block)) == f".messages[1]: {expected}"


def test_system_messages_that_say_nothing_are_left_out() -> None:
    header = "x-anthropic-billing-header: cch=1"
    messages = convert(
        {"role": "system", "content": ""},
        {"role": "system", "content": [text(header), text("kept")]},
        {"role": "system", "content": header + "\n  kept too"},
        {"role": "system", "content": [text(header), text(""), image("http://x")]},
        {"role": "system", "content": header},
        USER,
    ).conversation.messages
    assert [message.content for message in messages] == ["kept", "kept too", "<｜image｜>", "some json"]
    assert messages[2].image_ranges == ((0, 9),)


TOO_FEW = "(insufficient tool messages following tool_calls message)"
CALLS_WANTED = "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER, calling("a", "b"), result("a")], TOO_FEW),
        ([USER, calling("a"), USER, result("a")], TOO_FEW),
        ([USER, result("a")], CALLS_WANTED),
        ([USER, calling("a"), result("a"), result("a")], CALLS_WANTED),
        ([USER, calling("a"), result("z")], "did not have response messages: z"),
        ([USER, calling("a", "b"), result("a"), result("a")], "Duplicate value for 'tool_call_id' of a in message[3]"),
        ([USER, calling("a", "a")], "Duplicate value for 'tool_call_id' of a in message[1]"),
        ([USER, calling()], "Invalid 'messages[1].tool_calls': empty array."),
        ([USER, {"role": "assistant"}], "Invalid assistant message: content or tool_calls must be set"),
        ([{"role": "assistant", "content": [image("http://x")]}], "Image in assistant message is not supported"),
    ],
)
def test_every_call_is_answered_at_once(messages: list[Any], expected: str) -> None:
    assert expected in problem(*messages)


def test_answers_may_come_in_any_order_and_ids_may_be_used_again() -> None:
    messages = [USER, calling("a", "b"), result("b"), result("a"), calling("a"), result("a")]
    assert len(convert(*messages).conversation.messages) == 6


def prefix(content: str = "He", **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "prefix": True, **fields}


def test_a_prefix_is_continued_where_it_ends() -> None:
    stages = ThinkingInitialStage
    assert convert(USER, prefix()).parsing_options.thinking_initial_stage is stages.ContentContinuation
    thought = convert(USER, prefix("", reasoning_content="Hm"))
    assert thought.parsing_options.thinking_initial_stage is stages.ReasoningContinuation
    assert convert(USER, prefix(), thinking=OFF).parsing_options.thinking_initial_stage is None


def test_a_prefix_stands_last_and_alone() -> None:
    assert "prefix set true with message which is not final" in problem(USER, prefix(), USER)
    assert problem(USER, prefix(), tools=[tool()]) == "Function call should not be used with prefix"
    assert problem(USER, calling("a"), result("a"), prefix()) == "Function call should not be used with prefix"
    json_object = {"type": "json_object"}
    assert problem(USER, prefix(), response_format=json_object).startswith("response_format json_object should not")


def test_reasoning_that_had_to_come_back_is_missed_before_a_misplaced_prefix() -> None:
    options = ConversionOptions(reasoning_content_behavior=ReasoningContentBehavior.Reject)
    assert "`reasoning_content`" in problem(USER, calling("a", prefix=True), result("a"), options=options)


@pytest.mark.parametrize("content", ["Json", [text("x"), text("a JSON thing")]])
def test_json_output_wants_the_word_in_a_message(content: Any) -> None:
    request = convert({"role": "user", "content": content}, response_format={"type": "json_object"})
    assert request.parsing_options.parse_json_output
    assert request.inference_options.output_constraint is not None
    assert request.inference_options.output_constraint.kind == "json"
    assert "must contain the word 'json'" in problem(
        user(text("js"), text("on")), response_format={"type": "json_object"}
    )


def test_a_strict_response_schema_is_normalised_only_in_the_constraint() -> None:
    schema = {"type": "object", "title": "t", "properties": {"a": {"type": "string"}}}
    request = convert(response_format={"type": "json_schema", "json_schema": {"schema": schema, "strict": True}})
    assert request.conversation.response_schema == schema
    constraint = request.inference_options.output_constraint
    assert constraint is not None and '"additionalProperties":false' in constraint.schema
    assert "title" not in constraint.schema


def test_a_required_call_starts_inside_the_tool_block() -> None:
    request = convert(tools=[tool("f"), tool("g")], tool_choice="required", thinking=OFF)
    assert request.parsing_options.starts_in_tool_calls
    named = {"type": "function", "function": {"name": "g"}}
    request = convert(tools=[tool("f"), tool("g")], tool_choice=named, thinking=OFF)
    assert [definition.name for definition in request.conversation.tools] == ["g"]
    assert request.conversation.tool_choice == "required"


def test_tools_that_are_not_chosen_are_only_checked_by_name() -> None:
    request = convert(tools=[tool(parameters={"type": "bogus"})], tool_choice="none")
    assert request.conversation.tools == [] and not request.parsing_options.parse_tool_calls
    assert "Invalid 'tools[0].function.name'" in problem(tools=[tool("")], tool_choice="none")


# Each entry breaks one rule; earlier entries are told before later ones.
BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"model": "?"}, "The supported API model names are"),
    ({"tools": [tool("")]}, "Invalid 'tools[0].function.name'"),
    ({"messages": []}, "Empty input messages"),
    (
        {"response_format": {"type": "json_object"}, "messages": [user(text("x"))]},
        "Prompt must contain the word 'json'",
    ),
    ({"tools": [tool("f"), tool("f")]}, "Tool names must be unique."),
    ({"tool_choice": "required", "tools": [tool()]}, "Thinking mode does not support this tool_choice"),
    ({"stop": ""}, "Invalid 'stop': empty string"),
    ({"stream_options": {}}, "stream_options should be set along with stream = true"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "Invalid json schema: "),
    ({"tools": [tool("f", strict=True), tool("g")]}, "Cannot use strict tool with non-strict tool"),
    ({"n": 2}, "Invalid n value"),
    ({"seed": 2**63}, "Invalid seed value"),
]


PAIRS = [
    (first, second)
    for first in range(len(BROKEN))
    for second in range(first, len(BROKEN))
    if first == second or not BROKEN[first][0].keys() & BROKEN[second][0].keys()
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_of_two_broken_rules_the_earlier_is_told(first: int, second: int) -> None:
    body = {"model": FLASH, "messages": [USER]} | BROKEN[second][0] | BROKEN[first][0]
    with pytest.raises(ConversionError) as caught:
        ChatCompletionRequest(body).convert(ConversionOptions())
    assert str(caught.value).startswith(BROKEN[first][1])


def test_a_chunk_generator_wants_a_converted_request() -> None:
    ChatCompletionRequest.chunk_generator(convert(), "id", "m")
    with pytest.raises(TypeError):
        ChatCompletionRequest.chunk_generator(5, "id", "m")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ChatCompletionRequest.chunk_generator(convert(), 5, "m")  # type: ignore[arg-type]
