"""Models of every markup family from request to response and back: detection, a tool round trip, thinking."""

from __future__ import annotations

import json
import pickle
from functools import cache
from typing import Any

import pytest

from recipe.encoding.call_shape import CallShape, short_id
from recipe.encoding.chat_template import ChatTemplateEncoding
from recipe.encoding.template_thinking import template_thinking
from recipe.markup.detection import detect_markup, detect_reasoning, detect_tools
from recipe.markup.output_markup import TOOL_MARKERS, OutputMarkup, ReasoningMarkers, ToolMarkup
from recipe.markup.prompt_end import opens_reasoning
from recipe.prepare import PrepareConfig, PreparedRequest, Preparer
from recipe.prompt import Prompt
from recipe.request import ConversionOptions, ModelVersion, OutputConstraint
from recipe.stream.inference import InferenceChunk, InferenceFinishReason, PromptUsage
from recipe.stream.parsing_options import ThinkingInitialStage
from recipe.stream.processor import StreamProcessor
from tests.oracle.outcome import Json
from tests.recipe.chat_templates import TEMPLATES
from tests.recipe.extended_requests import ALL
from tests.recipe.markup_models import MODELS, WEATHER, markup_of, tokenizer_json, tokenizer_of
from tests.recipe.streamed import RESPONSES

THINK = ReasoningMarkers("<think>", "</think>")
MARKUPS: dict[str, ToolMarkup] = {
    "qwen": "hermes",
    "hermes of text": "hermes",
    "llama": "llama3",
    "llama with a tag": "llama3",
    "mistral": "mistral",
    "magistral": "mistral",
    "r1": "deepseek-v3",
}
WITH_REASONING = [name for name, model in MODELS.items() if model.reasoning]
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}


@cache
def preparer(name: str, template: str | None = None) -> Preparer:
    template = template or MODELS[name].template
    options: ConversionOptions = ALL.with_model_versions_by_name({"m": ModelVersion.ChatTemplate})
    support = template_thinking(template, markup_of(name).reasoning)
    config = PrepareConfig(
        tokenizer_json=tokenizer_json(name),
        encoding="chat-template",
        options=options.with_thinking_support(support),
        context_limit=8192,
        chat_template=template,
        special_tokens=MODELS[name].variables,
    )
    return Preparer(config)


def prepared(name: str, body: Json, protocol: str = "chat_completions", template: str | None = None) -> PreparedRequest:
    outcome = preparer(name, template).prepare(protocol, json.dumps({"model": "m"} | body).encode(), "ID")
    assert isinstance(outcome, PreparedRequest), outcome
    return outcome


def prompt(name: str, request: PreparedRequest) -> str:
    token_bytes = tokenizer_of(name).token_bytes
    ids = memoryview(request.token_ids).cast("I")
    return b"".join(token_bytes(token_id) for token_id in ids).decode()


def answered(name: str, request: PreparedRequest, output: str, protocol: str = "chat") -> Json:
    """The whole response to an output that arrives a token at a time."""
    tokenizer = tokenizer_of(name)
    processor: StreamProcessor[Any] = StreamProcessor(request.generator, request.parsing_options, tokenizer)
    response = RESPONSES[protocol]("ID", "m", 1, 10, 3)
    chunks = [InferenceChunk.ready(prompt_usage=PromptUsage(prompt_tokens=10, prompt_cache_hit_tokens=3))]
    chunks += [InferenceChunk.tokens([token_id]) for token_id in tokenizer.encode(output)]
    for chunk in [*chunks, InferenceChunk.finish(InferenceFinishReason.Stop)]:
        for piece in processor.push(chunk):
            response.accumulate(piece)
    whole: Json = json.loads(response.to_json())
    return whole


def asking(*messages: Json, **fields: Any) -> Json:
    return {"messages": [{"role": "user", "content": "Weather?"}, *messages], "tools": [CHAT_TOOL], **fields}


@pytest.mark.parametrize("name", MODELS)
def test_the_template_tells_how_calls_are_written(name: str) -> None:
    assert markup_of(name).tools == MARKUPS[name]
    assert (markup_of(name).reasoning is None) is (MODELS[name].reasoning is None)


def test_markers_are_tokens_where_the_vocabulary_has_them() -> None:
    assert markup_of("qwen").tokens == {"<tool_call>", "</tool_call>", "<think>", "</think>"}
    assert markup_of("hermes of text").tokens == frozenset()
    assert markup_of("magistral").reasoning == ("[THINK]", "[/THINK]")


def test_the_vocabulary_tells_where_the_template_does_not() -> None:
    assert detect_tools("{{ messages }}", {"[TOOL_CALLS]"}) == "mistral"
    assert detect_tools("{{ messages }}", {"<｜tool▁calls▁begin｜>"}) == "deepseek-v3"
    assert detect_tools("{{ messages }}", set()) == "hermes"
    assert detect_reasoning("{{ messages }}", {"<think>", "</think>"}) == THINK
    assert detect_reasoning("{{ messages }}", {"<think>"}) is None
    assert detect_reasoning("{{ enable_thinking }}", set()) == THINK


def test_every_markup_can_be_named() -> None:
    for tools, markers in TOOL_MARKERS.items():
        assert OutputMarkup.of(tools, None, set(markers)).tokens == set(markers)


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_a_call_reaches_the_client_in_each_protocol(protocol: str) -> None:
    bodies: dict[str, tuple[str, Json]] = {
        "chat": ("chat_completions", asking()),
        "responses": ("responses", {"input": "Weather?", "tools": [{"type": "function", **CHAT_TOOL["function"]}]}),  # type: ignore[dict-item]
        "messages": (
            "messages",
            {
                "max_tokens": 99,
                "messages": [{"role": "user", "content": "Weather?"}],
                "tools": [{"name": "get_weather", "input_schema": CITY}],
            },
        ),
    }
    path, body = bodies[protocol]
    response = json.dumps(answered("qwen", prepared("qwen", body, path), MODELS["qwen"].call, protocol))
    assert "get_weather" in response
    assert "days" in response
    assert "<tool_call>" not in response


@pytest.mark.parametrize("name", MODELS)
def test_a_tool_round_trip(name: str) -> None:
    """The call comes out of the output, and goes back into the prompt as the model writes it, with its result."""
    response = answered(name, prepared(name, asking()), MODELS[name].call)
    choice = response["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == WEATHER
    assert choice["finish_reason"] == "tool_calls"
    result = {"role": "tool", "tool_call_id": call["id"], "content": "Föhn"}
    text = prompt(name, prepared(name, asking(choice["message"], result)))
    assert '"city": "Zürich", "days": 2}' in text
    assert TOOL_MARKERS[MARKUPS[name]][0] in text or name.startswith("llama")
    assert "Föhn" in text


@pytest.mark.parametrize("name", WITH_REASONING)
def test_an_answer_that_thinks(name: str) -> None:
    response = answered(name, prepared(name, asking()), MODELS[name].reasoning or "")
    message = response["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.\nYes.", "42")
    assert response["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert response["choices"][0]["finish_reason"] == "stop"


def test_thinking_can_be_switched_off_where_the_template_has_a_switch() -> None:
    request = prepared("qwen", asking(enable_thinking=False))
    assert prompt("qwen", request).endswith("<think>\n\n</think>\n\n")
    assert request.parsing_options.thinking_initial_stage is None
    message = answered("qwen", request, "42")["choices"][0]["message"]
    assert message["content"] == "42"
    assert not message.get("reasoning_content")


def test_a_prompt_that_opens_the_reasoning_starts_in_it_even_where_the_request_wants_none() -> None:
    request = prepared("r1", asking(thinking={"type": "disabled"}))
    assert prompt("r1", request).endswith("<think>\n")
    assert request.parsing_options.thinking_initial_stage is ThinkingInitialStage.ReasoningStart


@pytest.mark.parametrize("name", ["qwen", "hermes of text", "r1"])
def test_an_open_reasoning_is_seen_at_the_end_of_the_prompt_alone(name: str) -> None:
    tokenizer, markup = tokenizer_of(name), markup_of(name)

    def is_open(text: str) -> bool:
        return opens_reasoning(tokenizer.prompt_tokenizer.encode_packed(rendered(text)), tokenizer, markup)

    def rendered(text: str) -> Prompt:
        prompt = Prompt()
        before, marker, behind = text.partition("<think>")
        prompt.push_text(before)
        if marker in markup.tokens:
            prompt.push_special(marker)
        else:
            prompt.push_text(marker)
        prompt.push_text(behind)
        return prompt

    assert is_open("Hi <think>\n \n")
    assert is_open("<think>")
    assert not is_open("<think> well")
    assert not is_open("<think>\n</think>\n")
    assert not is_open("hi")
    assert not is_open("")


def test_what_a_user_types_opens_no_reasoning_where_the_marker_is_a_token() -> None:
    template = "{{ messages[-1].content }}"
    body = {"messages": [{"role": "user", "content": "<think>\n"}]}
    assert not prepared("qwen", body, template=template).parsing_options.prompt_opens_reasoning


def test_a_constraint_knows_the_markup_and_where_it_begins() -> None:
    def constraint(name: str, **fields: Any) -> OutputConstraint:
        found = prepared(name, asking(**fields)).inference_options.output_constraint
        assert found is not None
        return found

    assert (constraint("qwen").tool_markup, constraint("qwen").begins_after) == ("hermes", "</think>")
    assert constraint("qwen").reasoning_start == "<think>", "the model opens it, or answers at once"
    assert constraint("r1").reasoning_start == "", "the prompt has opened it"
    assert constraint("qwen", enable_thinking=False).begins_after == ""
    assert constraint("r1").tool_markup == "deepseek-v3"
    assert constraint("r1").begins_after == "</think>"
    assert (constraint("llama").tool_markup, constraint("llama").begins_after) == ("llama3", "")


def test_a_required_call_behind_the_reasoning_is_read() -> None:
    request = prepared("r1", asking(tool_choice="required"))
    assert not request.parsing_options.starts_in_tool_calls
    (call,) = answered("r1", request, MODELS["r1"].call)["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"


@pytest.mark.parametrize("name", MODELS)
def test_one_call_where_parallel_calls_are_off(name: str) -> None:
    request = prepared(name, asking(parallel_tool_calls=False))
    calls = answered(name, request, MODELS[name].two_calls)["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["get_weather"]


def test_identifiers_of_mistral_are_nine_letters_and_digits() -> None:
    assert short_id("abcDEF123") == "abcDEF123"
    made = short_id("call_00_abcdefghijklmnopqrst0000")
    assert len(made) == 9
    assert made.isalnum()
    assert made == short_id("call_00_abcdefghijklmnopqrst0000") != short_id("call_01_abcdefghijklmnopqrst0000")


def test_the_identifier_of_a_call_and_of_its_result_stay_the_same() -> None:
    call = {"id": "call_00_x", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "call_00_x", "content": "Föhn"}
    text = prompt("mistral", prepared("mistral", asking({"role": "assistant", "tool_calls": [call]}, result)))
    assert text.count(short_id("call_00_x")) == 2
    assert "call_00_x" not in text


@pytest.mark.parametrize(("family", "tools"), [("qwen", "hermes"), ("llama", "llama3"), ("mistral", "mistral")])
def test_a_template_alone_tells_how_calls_are_written(family: str, tools: ToolMarkup) -> None:
    assert detect_markup(TEMPLATES[family], set()).tools == tools


def test_a_stop_string_that_turns_up_at_the_end_of_the_output_is_reported() -> None:
    body = {"max_tokens": 99, "messages": [{"role": "user", "content": "hi"}], "stop_sequences": ["STOP"]}
    body["tools"] = [{"name": "get_weather", "input_schema": CITY}]
    response = answered("llama", prepared("llama", body, "messages"), '{"name": "a STOP', "messages")
    assert (response["stop_reason"], response["stop_sequence"]) == ("stop_sequence", "STOP")
    assert response["content"][-1]["text"] == '{"name": "a '


def test_calls_without_text_make_no_empty_message() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    turns = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Föhn"},
    ]
    assert prompt("r1", prepared("r1", asking(*turns))).count("<｜Assistant｜>") == 1


@pytest.mark.parametrize(
    ("template", "shape"),
    [
        ("{{ messages | tojson }}", CallShape(null_content=True)),
        ("{% for m in messages %}{{ m.content or '' }}{% endfor %}", CallShape(null_content=True)),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", CallShape()),
        ("{% for m in messages %}{{ m.content + '' }}{% endfor %}", CallShape()),
        ("{{ messages[1].tool_calls[0].function.arguments }}", CallShape(text_arguments=True, null_content=True)),
        ("{{ raise_exception('no') }}", CallShape()),
    ],
)
def test_a_template_gets_calls_in_the_shape_it_can_use(template: str, shape: CallShape) -> None:
    encoding = ChatTemplateEncoding(template, tokenizer_of("qwen"))
    assert encoding.call_shape == shape


@pytest.mark.parametrize("protocol", ["chat_completions", "responses", "messages"])
def test_what_is_prepared_crosses_to_another_process(protocol: str) -> None:
    bodies: dict[str, Json] = {
        "chat_completions": asking(parallel_tool_calls=False),
        "responses": {"input": "Weather?", "metadata": {"a": "b"}, "parallel_tool_calls": False},
        "messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    }
    request = prepared("qwen", bodies[protocol], protocol)
    crossed = pickle.loads(pickle.dumps(request))
    assert crossed.parsing_options.markup == request.parsing_options.markup
    names = {"chat_completions": "chat"}
    assert answered("qwen", crossed, "hi", names.get(protocol, protocol))["model"] == "m"
