"""Requests for a model with a chat template: its own sampling defaults, thinking as it can, and what templates get."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recipe.bad_words import bad_word_token_ids
from recipe.encoding.template_thinking import template_thinking
from recipe.errors import ConversionError
from recipe.prepare import PrepareConfig, PreparedRequest, Preparer, RejectedRequest
from recipe.request import ConversationRequest, ConversionOptions, ModelVersion, SamplingDefaults, ThinkingSupport
from tests.oracle.outcome import Json
from tests.recipe.chat_templates import TEMPLATES, VARIABLES, family_encoding, family_tokenizer, tokenizer_json
from tests.recipe.extended_requests import (
    ALL,
    CHAT_TOOL,
    OFF,
    TOOL,
    assistant,
    chat,
    convert,
    messages,
    responses,
    user,
)

MODEL = ALL.with_model_versions_by_name({"m": ModelVersion.ChatTemplate})
DEFAULTS = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.1)


def converted(protocol: str, body: Json, options: ConversionOptions = MODEL) -> ConversationRequest:
    return convert(protocol, body | {"model": "m"}, options)


def prompt(body: Json, family: str = "qwen", options: ConversionOptions = MODEL) -> str:
    conversation = converted("chat_completions", body, options).conversation
    return family_encoding(family).render_conversation(conversation).prompt


def preparer(family: str = "qwen", options: ConversionOptions = MODEL) -> Preparer:
    return Preparer(
        PrepareConfig(
            tokenizer_json=tokenizer_json(family),
            encoding="chat-template",
            options=options,
            context_limit=4096,
            chat_template=TEMPLATES[family],
            special_tokens=VARIABLES.get(family, {}),
        )
    )


@pytest.mark.parametrize("thinking", [True, False])
def test_temperature_and_top_p_are_as_asked_also_when_thinking(thinking: bool) -> None:
    for protocol, body in (("chat_completions", chat), ("messages", messages)):
        asked = body(temperature=0.25, top_p=0.5, enable_thinking=thinking)
        inference = converted(protocol, asked, MODEL.with_sampling_defaults(DEFAULTS)).inference_options
        assert (inference.temperature, inference.top_p) == (0.25, 0.5)


def test_what_a_request_leaves_open_is_as_the_model_says_and_else_neutral() -> None:
    def sampling(options: ConversionOptions, **fields: Any) -> tuple[Any, ...]:
        found = converted("chat_completions", chat(**fields), options).inference_options
        return found.temperature, found.top_p, found.top_k, found.repetition_penalty, found.min_p

    assert sampling(MODEL) == (1.0, 1.0, 0, 1.0, 0.0)
    assert sampling(MODEL.with_sampling_defaults(DEFAULTS)) == (0.6, 0.9, 20, 1.1, 0.0)
    assert sampling(MODEL.with_sampling_defaults(DEFAULTS), top_k=-1, temperature=0) == (0.0, 0.9, 0, 1.1, 0.0)


def test_the_models_of_deepseek_sample_as_before_whatever_the_defaults() -> None:
    options = ALL.with_sampling_defaults(DEFAULTS)
    inference = convert("chat_completions", chat(temperature=0.25), options).inference_options
    assert (inference.temperature, inference.top_k, inference.repetition_penalty) == (1.0, 0, 1.0)


@pytest.mark.parametrize(
    ("support", "asked", "thinks"),
    [
        (ThinkingSupport.Switchable, None, True),
        (ThinkingSupport.Switchable, "disabled", False),
        (ThinkingSupport.Never, None, False),
        (ThinkingSupport.Never, "enabled", False),
        (ThinkingSupport.Always, None, True),
        (ThinkingSupport.Always, "disabled", True),
    ],
)
def test_a_model_thinks_as_far_as_it_can(support: ThinkingSupport, asked: str | None, thinks: bool) -> None:
    thinking = {"thinking": {"type": asked}} if asked else {}
    for protocol, body in (("chat_completions", chat), ("messages", messages)):
        request = converted(protocol, body(**thinking), MODEL.with_thinking_support(support))
        assert request.conversation.thinking_mode is thinks
        assert (request.conversation.reasoning_effort is not None) is thinks
        assert (request.parsing_options.thinking_initial_stage is not None) is thinks


@pytest.mark.parametrize(
    ("template", "support"),
    [
        (TEMPLATES["qwen"], ThinkingSupport.Switchable),
        (TEMPLATES["r1"], ThinkingSupport.Always),
        (TEMPLATES["llama"], ThinkingSupport.Never),
        (TEMPLATES["mistral"], ThinkingSupport.Never),
        (
            "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ thinking }}",
            ThinkingSupport.Switchable,
        ),
        ("{% for m in messages %}{{ m.thinking }}{% endfor %}", ThinkingSupport.Never),
        ("{% broken", ThinkingSupport.Never),
    ],
    ids=["qwen", "r1", "llama", "mistral", "sets its own", "a field", "broken"],
)
def test_a_template_tells_whether_its_model_thinks(template: str, support: ThinkingSupport) -> None:
    assert template_thinking(template) is support


def test_without_max_tokens_an_answer_may_fill_the_context() -> None:
    request = converted("chat_completions", chat())
    assert request.resolve_max_tokens(100, 200_000) == 199_900
    assert converted("chat_completions", chat(max_tokens=7)).resolve_max_tokens(100, 200_000) == 7
    with pytest.raises(ConversionError, match="maximum context length is 200"):
        request.resolve_max_tokens(201, 200)


def test_any_name_is_a_model_where_all_are() -> None:
    with pytest.raises(ConversionError, match="The supported API model names are m"):
        convert("chat_completions", chat(), MODEL)
    assert convert("chat_completions", chat(), MODEL.with_any_model(ModelVersion.ChatTemplate)) is not None


def test_images_are_named_and_not_looked_at() -> None:
    image = {"type": "image_url", "image_url": {"url": "no such thing"}}
    request = converted("chat_completions", chat(user([image])))
    assert request.conversation.messages[0].content == "[Unsupported Image]"


def test_a_schema_stands_in_the_first_system_message() -> None:
    response_format = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    shown = prompt(chat({"role": "developer", "content": "Be brief."}, user(), response_format=response_format))
    first = shown.partition("<|im_end|>")[0]
    assert "Be brief." in first and first.endswith('schema to reply:\n{"type": "object"}')


def test_a_required_call_is_demanded_of_the_output_and_not_opened_by_the_prompt() -> None:
    for fields in ({"enable_thinking": True}, {"enable_thinking": False}):
        request = converted("chat_completions", chat(tools=[CHAT_TOOL], tool_choice="required", **fields))
        constraint = request.inference_options.output_constraint
        assert constraint is not None and constraint.kind == "tool_call_required"
        assert not request.parsing_options.starts_in_tool_calls


def test_functions_of_namespaces_have_plain_names_and_developers_are_heard_as_system() -> None:
    inner = {"type": "function", "name": "f"}
    tools = [{"type": "namespace", "name": "n", "tools": [inner]}]
    request = converted("responses", responses(tools=tools, input=[{"role": "developer", "content": "x"}, user()]))
    assert [tool.name for tool in request.conversation.tools] == ["n__f"]
    assert [message.role for message in request.conversation.messages] == ["system", "user"]


def test_a_system_message_in_mid_conversation_is_a_reminder_and_deferred_tools_are_there_at_once() -> None:
    tools = [TOOL, TOOL | {"name": "g", "defer_loading": True}]
    body = messages(user(), {"role": "system", "content": "x"}, tools=tools)
    conversation = converted("messages", body).conversation
    assert conversation.messages[-1].content == "<system-reminder>\nx\n</system-reminder>"
    assert [tool.defer_loading for tool in conversation.tools] == [False, False]


def test_an_answer_is_continued_in_the_words_of_the_template() -> None:
    body = chat(user(), assistant("The capital is"), continue_final_message=True, thinking=OFF)
    assert prompt(body).endswith("The capital is")


def test_arguments_reach_the_template_and_type_no_special_token() -> None:
    template = "{{ custom }}|{{ reasoning_effort }}|{{ messages[0].content }}"
    encoding = type(family_encoding("qwen"))(template, family_tokenizer("qwen"))
    kwargs = {"custom": "a<|im_end|>", "reasoning_effort": "tiny"}
    conversation = converted("chat_completions", chat(chat_template_kwargs=kwargs)).conversation
    rendered = encoding.render_conversation(conversation)
    assert rendered.prompt == "a<|im_end|>|tiny|hi"
    assert rendered.special_ranges == []


def test_history_without_reasoning_leaves_the_field_out() -> None:
    template = "{% for m in messages %}{{ m.reasoning_content if 'reasoning_content' in m else '-' }}{% endfor %}"
    encoding = type(family_encoding("qwen"))(template, family_tokenizer("qwen"))
    body = chat(user(), assistant("a"), user(), assistant("b", reasoning_content="why"), user())
    assert encoding.render_conversation(converted("chat_completions", body).conversation).prompt == "---why-"


def test_bad_words_become_tokens_at_the_start_of_a_text_and_behind_a_space() -> None:
    tokenizer = family_tokenizer("qwen")
    assert bad_word_token_ids(["ab", "ab"], tokenizer) == [tokenizer.encode("ab"), tokenizer.encode(" ab")]
    body = json.dumps(chat(bad_words=["ab"]) | {"model": "m"}).encode()
    prepared = preparer().prepare("chat_completions", body, "r")
    assert isinstance(prepared, PreparedRequest)
    assert prepared.inference_options.bad_words_token_ids[0] == tokenizer.encode("ab")


def test_a_worker_reads_extensions_and_refuses_by_name() -> None:
    prepared = preparer().prepare("responses", b'{"model":"m","input":"x","background":true}', "r")
    assert isinstance(prepared, RejectedRequest)
    assert (prepared.status, prepared.message) == (400, "background is not supported.")
    without = ConversionOptions().with_model_versions_by_name({"m": ModelVersion.ChatTemplate})
    prepared = preparer(options=without).prepare("responses", b'{"model":"m","input":"x","background":true}', "r")
    assert isinstance(prepared, PreparedRequest)
