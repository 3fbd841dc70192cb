"""Tools, calls and response formats for chat templates that know nothing of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.conversation import (
    AssistantMessage,
    Conversation,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from recipe.encoding.chat_template import ChatTemplateEncoding
from recipe.markup.output_markup import OutputMarkup, ToolMarkup
from recipe.prepare import PrepareConfig, PreparedRequest, Preparer
from recipe.request import ConversionOptions, ModelVersion
from tests.recipe.chat_conversations import agent_conversation
from tests.recipe.chat_templates import QWEN, family_tokenizer, tokenizer_json
from tests.recipe.test_typed_special_tokens import harmless, stretches, texts_for

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('take turns') }}"
    "{% endif %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}{{ m.content }}</s>{% endif %}"
    "{% endfor %}"
)
TOOL = ToolDefinition("add", "Adds.", {"type": "object", "properties": {"n": {"type": "integer"}}})
TOLD = """## Tools:

You can call these functions:
{"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}

For each call, write the name and the arguments as JSON between tags, and nothing behind the last call:
<tool_call>
{"name": "FUNCTION", "arguments": {"PARAMETER": "VALUE"}}
</tool_call>"""
CALLED = '<tool_call>\n{"name": "add", "arguments": {"n":1}}\n</tool_call>'


def encoding_of(template: str, **settings: Any) -> ChatTemplateEncoding:
    return ChatTemplateEncoding(template, family_tokenizer("smollm"), **({"tells_tools": True} | settings))


def prompt_of(template: str, conversation: Conversation, **settings: Any) -> str:
    return encoding_of(template, **settings).render_conversation(conversation).prompt


def round_trip(**settings: Any) -> Conversation:
    calls = [ToolCall("a", "add", '{"n":1}'), ToolCall("b", "add", '{"n":1}')]
    results = [ToolMessage("two", "a"), ToolMessage("three", "b")]
    messages = [UserMessage("u"), AssistantMessage("I add.", tool_calls=calls), *results]
    return Conversation(messages, tools=[TOOL], **settings)


def test_tools_calls_and_results_are_told_in_text() -> None:
    assert prompt_of(PLAIN, round_trip()) == (
        f"<|im_start|>system\n{TOLD}<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
        f"<|im_start|>assistant\nI add.\n{CALLED}\n{CALLED}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\ntwo\n</tool_response>\n<tool_response>\nthree\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_tools_stand_behind_the_first_system_message_and_before_the_form_of_the_answer() -> None:
    conversation = Conversation(
        [SystemMessage("Be brief."), UserMessage("u")], tools=[TOOL], response_format="json_object"
    )
    prompt = prompt_of(PLAIN, conversation)
    assert prompt.startswith(f"<|im_start|>system\nBe brief.\n\n{TOLD}\n\n## Response Format:")
    assert prompt.count("<|im_start|>system") == 1


def test_a_template_that_takes_no_system_message_has_instructions_in_the_users_first() -> None:
    assert prompt_of(TURNS, round_trip()).startswith(
        f"[INST] {TOLD}\n\nu [/INST]I add.\n{CALLED}\n{CALLED}</s>[INST] <to"
    )
    asked = Conversation([UserMessage("u")], response_format="json_object")
    prompt = prompt_of(TURNS, asked, tells_tools=False)
    assert prompt.startswith("[INST] ## Response Format:") and prompt.endswith("\n\nu [/INST]")
    assert prompt_of(TURNS, Conversation([UserMessage("u")])) == "[INST] u [/INST]"


def test_nothing_is_told_where_the_template_tells_it_or_no_tool_may_be_used() -> None:
    for conversation in (round_trip(), Conversation([UserMessage("u")], tools=[TOOL])):
        assert prompt_of(QWEN, conversation) == prompt_of(QWEN, conversation, tells_tools=False)
    unused = Conversation([UserMessage("u")], tools=[TOOL], tool_choice="none")
    assert prompt_of(PLAIN, unused) == prompt_of(PLAIN, Conversation([UserMessage("u")]))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_text_of_a_user_in_what_is_told_becomes_a_special_token(data: st.DataObject) -> None:
    drawn = [data.draw(texts_for("smollm")) for _ in range(24)]

    def conversation(change: Callable[[str], str]) -> Conversation:
        texts = iter(drawn)
        return agent_conversation(lambda: change(next(texts)))

    encoding = encoding_of(PLAIN)
    shown, wanted = (stretches(encoding, conversation(change)) for change in (str, harmless))
    assert [text for text, special in shown if special] == [text for text, special in wanted if special]
    tokenizer = family_tokenizer("smollm")
    ids = encoding.encode(conversation(str))
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "".join(text for text, _ in shown)


@pytest.mark.parametrize(("markup", "is_told"), [(None, True), ("hermes", True), ("llama3", False)])
def test_a_server_tells_of_tools_in_the_markup_that_it_reads_calls_in(markup: ToolMarkup | None, is_told: bool) -> None:
    options = ConversionOptions().with_any_model(ModelVersion.ChatTemplate)
    own = None if markup is None else OutputMarkup(markup)
    config = PrepareConfig(tokenizer_json("smollm"), "chat-template", options, 4096, chat_template=PLAIN, markup=own)
    preparer = Preparer(config)
    function = {"name": "add", "parameters": {"type": "object"}}
    body = {"model": "m", "messages": [{"role": "user", "content": "u"}]}
    sizes = []
    for more in ({}, {"tools": [{"type": "function", "function": function}]}):
        prepared = preparer.prepare("chat_completions", json.dumps(body | more).encode(), "r")
        assert isinstance(prepared, PreparedRequest), prepared
        sizes.append(len(prepared.token_ids))
    assert (sizes[1] > sizes[0]) is is_told
