"""How the messages of a Messages request become a conversation."""

from typing import Any

import pytest

from recipe.errors import ConversionError
from recipe.protocol.messages.convert import MessagesRequest
from recipe.request import ConversationRequest, ConversionOptions, ReasoningContentBehavior, WebSearchBehavior

V41, V4 = "DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro"
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
TOOLS = [
    {"name": "f", "input_schema": {"type": "object"}},
    {"name": "g", "input_schema": {"type": "object"}, "defer_loading": True},
]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def use(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": arguments}


def result(call_id: str, content: Any = "r") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def thinking(value: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": value, "signature": "s"}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def convert(
    *messages: Any, model: str = V41, options: ConversionOptions | None = None, **fields: Any
) -> ConversationRequest:
    body = {"model": model, "messages": list(messages), **fields}
    return MessagesRequest(body).convert(options or ConversionOptions())


def turns(*messages: Any, **fields: Any) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in convert(*messages, **fields).conversation.messages]


def complaint(*messages: Any, **fields: Any) -> str:
    with pytest.raises(ConversionError) as caught:
        convert(*messages, **fields)
    return str(caught.value)


def test_each_block_of_a_user_message_is_a_message_of_its_own() -> None:
    assert turns(user(text("a"), text("b"))) == [("user", "a"), ("user", "b")]


def test_an_assistant_message_gathers_its_blocks_by_kind() -> None:
    blocks = thinking("1"), text("a"), thinking("2"), text("b"), use("t", city="x", n=[1.0, None])
    message = convert(assistant(*blocks), user(result("t"))).conversation.messages[0]
    assert (message.content, message.reasoning_content) == ("a\n\nb", "1\n\n2")
    assert [(c.id, c.name, c.arguments) for c in message.tool_calls or ()] == [
        ("t", "f", '{"city": "x", "n": [1.0, null]}')
    ]


def test_empty_texts_at_the_start_of_an_assistant_message_leave_no_blank_lines() -> None:
    assert turns(assistant(text(""), text("a"), text(""))) == [("assistant", "a\n\n")]


def test_a_system_message_in_the_middle_depends_on_the_model() -> None:
    messages = user(text("a")), system([text("m"), text("n")]), user(text("b"))
    assert turns(*messages)[1] == ("system", "m\n\nn")
    assert turns(*messages, model=V4)[1] == ("user", "<system-reminder>\nm\n\nn\n</system-reminder>")
    assert turns(user(text("a")), system(""), model=V4) == [("user", "a")]


def test_the_billing_header_of_a_client_is_no_part_of_the_system_prompt() -> None:
    header = text("X-Anthropic-Billing-Header: cc=1")
    assert turns(user(text("a")), system=[header, text("real"), text("more")])[0] == ("system", "real\n\nmore")
    assert turns(user(text("a")), system=[text("real"), header])[0][1].endswith("cc=1")
    assert turns(user(text("a")), system="x-anthropic-billing-header")[0][1] == "x-anthropic-billing-header"


def test_results_stay_in_the_order_in_which_they_came() -> None:
    messages = convert(assistant(use("a"), use("b")), user(result("b", "2"), result("a", "1"))).conversation.messages
    assert [(m.tool_call_id, m.content) for m in messages[1:]] == [("b", "2"), ("a", "1")]


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([assistant(use("b"), use("a"))], "messages.0:"),
        ([assistant(use("b"), use("a")), user(text("x"))], "messages.1: "),
        ([assistant(use("b"), use("a")), assistant(text("x"))], "messages.1: "),
        ([assistant(use("b"), use("a")), system("x")], "messages.1: "),
        ([assistant(use("b"), use("a"), text("x"))], "messages.0.2: "),
    ],
)
def test_calls_without_results_are_listed_in_order_with_the_place_where_results_were_missed(
    messages: list[Any], place: str
) -> None:
    assert complaint(*messages) == (
        f"{place}`tool_use` ids were found without `tool_result` blocks immediately after: a, b. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def test_a_missing_result_is_told_at_the_call_when_only_results_follow() -> None:
    assert complaint(assistant(use("a"), use("b")), user(result("a"))).startswith("messages.0:`tool_use` ids")


def test_a_result_answers_one_call_of_the_message_before() -> None:
    assert "found in `tool_result` blocks: zz" in complaint(assistant(use("a")), user(result("a"), result("zz")))
    assert "a single result" in complaint(assistant(use("a")), user(result("a"), result("a")))
    assert "found in `tool_result` blocks: a" in complaint(assistant(use("a")), user(result("a")), user(result("a")))


def test_call_ids_may_repeat_in_another_message_only() -> None:
    assert complaint(assistant(use("a"), use("a"))) == "messages.0.content.1: `tool_use` ids must be unique"
    convert(assistant(use("a")), user(result("a")), assistant(use("a")), user(result("a")))


@pytest.mark.parametrize(
    ("message", "role"),
    [
        (user(thinking("x")), "assistant"),
        (user(use("a")), "assistant"),
        (system([use("a")]), "assistant"),
        (user({"type": "server_tool_use", "id": "a", "name": "web_search", "input": {}}), "assistant"),
        (user({"type": "web_search_tool_result", "tool_use_id": "a", "content": []}), "assistant"),
        (assistant(result("a")), "user"),
        (user({"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}), "system"),
    ],
)
def test_a_block_in_a_message_of_another_role_is_refused_with_the_role_it_belongs_to(message: Any, role: str) -> None:
    assert complaint(message, tools=TOOLS).endswith(f"in `{role}` messages")


def test_server_tool_blocks_are_refused_or_dropped() -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    assert complaint(assistant(search)) == "Unsupported content block: server tools are not supported"
    dropping = ConversionOptions(messages_web_search=WebSearchBehavior.Drop)
    assert turns(assistant(search, found, text("a")), options=dropping) == [("assistant", "a")]


def test_a_referenced_tool_joins_the_conversation_after_the_message_that_refers_to_it() -> None:
    reference = {"type": "tool_reference", "tool_name": "g"}
    messages = assistant(use("a")), user(result("a", [text("see"), reference]), text("z"))
    *_, answered, asked, added = convert(*messages, tools=TOOLS).conversation.messages
    assert (answered.content, asked.content, added.role, added.content) == ("see\n\ng", "z", "system", "")
    assert [tool.name for tool in getattr(added, "tools", ())] == ["g"]
    assert turns(*messages, tools=TOOLS, model=V4)[-1] == ("user", "z")
    unknown = user(result("a", [{"type": "tool_reference", "tool_name": "q"}]))
    assert complaint(assistant(use("a")), unknown).endswith("tool reference 'q' not found in available tools")


def test_a_system_message_keeps_only_the_added_tools_that_the_choice_leaves() -> None:
    added = system([{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "g"}}])
    assert turns(added, tools=TOOLS) == [("system", "")]
    assert turns(added, tools=TOOLS, tool_choice={"type": "none"}) == []


def test_images_become_placeholders_where_the_model_takes_them() -> None:
    message = convert(user(PNG)).conversation.messages[0]
    source = message.image_sources[0]
    assert (source.data_url, source.detail, source.path) == (
        "data:image/png;base64,AAAA",
        "high",
        "messages.0.content[0]",
    )
    assert message.image_ranges == ((0, len(message.content)),)
    assert turns(user(PNG), model=V4) == [("user", "[Unsupported Image]")]
    assert complaint(assistant(PNG)) == "Image in assistant message is unsupported"


def test_an_image_in_a_result_is_named_by_the_result() -> None:
    bad = {"type": "image", "source": {"type": "url", "url": "ftp://e"}}
    messages = assistant(use("a")), user(result("a", [text("x"), bad]))
    assert complaint(*messages) == 'messages.1.content.0.tool_result.content[1]: invalid url: "ftp://e"'
    shown = convert(assistant(use("a")), user(result("a", [text("x"), PNG]))).conversation.messages[1]
    assert shown.image_sources[0].path == "messages.1.content.0.tool_result"
    assert [shown.content[start:end] for start, end in shown.image_ranges] == ["<｜image｜>"]


def test_documents_are_named_not_read() -> None:
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
    assert turns(user(document)) == [("user", "[Unsupported document type: text/plain]")]
    assert turns(user({"type": "document", "source": {}})) == [("user", "[Unsupported document type: unknown]")]


def test_reasoning_that_had_to_come_back_is_asked_for_by_its_place_in_the_protocol() -> None:
    options = ConversionOptions(reasoning_content_behavior=ReasoningContentBehavior.Reject)
    assert "`content[].thinking`" in complaint(assistant(use("a")), user(result("a")), options=options)
    convert(assistant(use("a")), user(result("a"), text("and")), options=options)
    convert(assistant(thinking(""), use("a")), user(result("a")), options=options)


def test_without_thinking_reasoning_of_the_history_is_left_out() -> None:
    message = convert(assistant(thinking("x"), text("y")), thinking={"type": "disabled"}).conversation.messages[0]
    assert message.reasoning_content is None


def test_messages_are_needed_and_so_are_blocks() -> None:
    assert complaint() == "messages: at least one message is required"
    assert complaint(user()) == "messages.0: all messages must have non-empty content"
    assert turns({"role": "user", "content": ""}) == [("user", "")]
