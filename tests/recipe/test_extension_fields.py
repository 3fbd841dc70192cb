"""Known fields work, are ignored as hints, or are refused by their name; and values out of range name their field."""

from __future__ import annotations

import json
from typing import Any

import pytest

import recipe
from recipe.errors import ConversionError
from recipe.extensions import Extensions
from recipe.protocol.known_fields import (
    CHAT_COMPLETIONS_IGNORED,
    CHAT_COMPLETIONS_REFUSED,
    MESSAGES_IGNORED,
    MESSAGES_REFUSED,
    RESPONSES_IGNORED,
    RESPONSES_REFUSED,
)
from recipe.protocol.responses.convert import ResponsesRequest
from recipe.request import ConversationRequest, ConversionOptions
from tests.oracle.build import body_value, make_options, request_class
from tests.oracle.compare import differences
from tests.oracle.corpus import golden_cases
from tests.oracle.observe import obs_converted
from tests.oracle.outcome import Json
from tests.recipe.extended_requests import (
    ALL,
    CHAT_TOOL,
    OFF,
    REQUESTS,
    TOOL,
    V4,
    assistant,
    chat,
    convert,
    messages,
    responses,
    user,
)

BODIES = {"chat_completions": chat, "responses": responses, "messages": messages}
REFUSED = {
    "chat_completions": CHAT_COMPLETIONS_REFUSED,
    "responses": RESPONSES_REFUSED,
    "messages": MESSAGES_REFUSED,
}
IGNORED = {
    "chat_completions": CHAT_COMPLETIONS_IGNORED,
    "responses": RESPONSES_IGNORED,
    "messages": MESSAGES_IGNORED,
}
NO_HARM = {"truncation": "disabled", "modalities": ["text"], "best_of": 1, "repeat_penalty": 1.0, "echo": False}


def refusal(protocol: str, body: Json, options: ConversionOptions = ALL) -> str:
    """The message of the error that a request leads to."""
    with pytest.raises((ConversionError, ValueError)) as caught:
        convert(protocol, body, options)
    error = caught.value
    return json.loads(error.body)["error"]["message"] if isinstance(error, ConversionError) else str(error)


def of_protocols(table: dict[str, Any]) -> list[Any]:
    return [pytest.param(protocol, name, id=f"{protocol}-{name}") for protocol in table for name in table[protocol]]


def dressed(protocol: str, path: str) -> Json:
    """A body with something at `path`, such as `tools[].strict`, inside whatever the path needs."""
    turns = [user([{"type": "text", "text": "hi"}])]
    body = BODIES[protocol](*turns) if protocol != "responses" else responses()
    if "tools" in path:
        body["tools"] = [dict(TOOL)]
    if "system" in path:
        body["system"] = [{"type": "text", "text": "s"}]
    if "stream_options" in path:
        body["stream"] = True
    *parents, name = path.split(".")
    place: Any = body
    for parent in parents:
        key = parent.removesuffix("[]")
        place = place[key][0] if parent.endswith("[]") else place.setdefault(key, dict(DEFAULTS.get(key, {})))
    place[name] = HINTS.get(name, "x")
    return body


DEFAULTS = {"thinking": {"type": "enabled"}}
HINTS: dict[str, Any] = {
    "budget_tokens": 99,
    "cache_control": {"type": "ephemeral"},
    "include_obfuscation": True,
    "max_tool_calls": 3,
    "metadata": {"user_id": "u"},
    "store": True,
    "stream_options": {"include_obfuscation": True},
    "strict": True,
    "summary": "auto",
    "verbosity": "low",
}


@pytest.mark.parametrize(("protocol", "name"), of_protocols(REFUSED))
def test_a_field_that_would_change_the_answer_is_refused_by_name(protocol: str, name: str) -> None:
    body = BODIES[protocol](**{name: {"some": 1}})
    assert refusal(protocol, body).startswith(f"{name} is not supported.")
    convert(protocol, body, ConversionOptions())  # without the extension it is an unknown field


@pytest.mark.parametrize(("protocol", "name"), of_protocols(REFUSED))
def test_a_refused_field_may_say_that_nothing_is_wanted(protocol: str, name: str) -> None:
    harmless = REFUSED[protocol][name].harmless[:1]
    for value in (None, *harmless):
        convert(protocol, BODIES[protocol](**{name: value}))


@pytest.mark.parametrize(("protocol", "path"), of_protocols(IGNORED))
def test_a_hint_changes_nothing_of_the_conversation(protocol: str, path: str) -> None:
    hinted = convert(protocol, dressed(protocol, path))
    bare = dressed(protocol, path)
    *parents, name = path.split(".")
    place = bare
    for parent in parents:
        place = place[parent.removesuffix("[]")]
        place = place[0] if parent.endswith("[]") else place
    del place[name]
    assert obs_converted(recipe, hinted) == obs_converted(recipe, convert(protocol, bare))


@pytest.mark.parametrize("protocol", REQUESTS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", -2),
        ("min_p", 1.5),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -3),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"99999999999": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {str(token): 1 for token in range(1025)}),
        ("min_tokens", -1),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [1] * 129),
        ("bad_words", [""]),
        ("ignore_eos", "yes"),
        ("seed", 2**63),
        ("priority", 2**31),
        ("cache_salt", ""),
        ("structured_outputs", {}),
        ("structured_outputs", {"regex": "a", "choice": ["b"]}),
        ("structured_outputs", {"choice": []}),
        ("structured_outputs", {"json": "{"}),
        ("structured_outputs", {"json": {"type": "nope"}}),
        ("structured_outputs", {"regex": "a", "whitespace_pattern": "x"}),
        ("chat_template_kwargs", {"messages": []}),
        ("chat_template_kwargs", {"enable_thinking": "no"}),
        ("chat_template_kwargs", {"custom": 1}),
    ],
)
def test_a_bad_value_is_refused_and_its_field_named(protocol: str, name: str, value: Any) -> None:
    told = refusal(protocol, BODIES[protocol](**{name: value}))
    assert name in told or "json schema" in told


@pytest.mark.parametrize(
    ("protocol", "body", "told"),
    [
        ("chat_completions", chat(n=17), "Invalid n value, the valid range of n is [1, 16]"),
        ("chat_completions", chat(n=0), "Invalid n value, the valid range of n is [1, 16]"),
        ("chat_completions", chat(max_completion_tokens=0), "Invalid max_completion_tokens value"),
        ("chat_completions", chat(continue_final_message=True), "continue_final_message needs"),
        ("chat_completions", chat(add_generation_prompt=False), "add_generation_prompt is only"),
        ("chat_completions", chat(user(), assistant("a", audio={"id": "x"})), "messages[1].audio is not supported"),
        (
            "chat_completions",
            chat(user(), assistant(None, function_call={"name": "f", "arguments": ""})),
            "messages[1].function_call is not supported",
        ),
        (
            "chat_completions",
            chat(user([{"type": "file", "file_id": "x"}]), model=V4),
            ".messages[0]: file_id is not supported",
        ),
        (
            "responses",
            responses(model=V4, input=[user([{"type": "input_image", "file_id": "x"}])]),
            "input[0].content[0]: file_id is not supported",
        ),
        (
            "chat_completions",
            chat(user([{"type": "file", "file": {"file_id": "x"}}]), model=V4),
            ".messages[0]: file_id is not supported",
        ),
        (
            "chat_completions",
            chat(user([{"type": "file", "file": {"file_id": 1}}])),
            ".messages[0]: file: Expected `str | null`",
        ),
        (
            "responses",
            responses(input=[user([{"type": "input_text", "text": "a"}, {"type": "input_file", "file_id": "x"}])]),
            "input[0].content[1]: file_id is not supported",
        ),
        ("responses", responses(input=[user(), {"type": "item_reference", "id": "x"}]), "input[1]: item_reference is"),
        *(
            (
                "messages",
                messages(user([{"type": kind, "source": {"type": "file", "file_id": "x"}}]), model=V4),
                "messages.0.content[0]: file_id is not supported",
            )
            for kind in ("image", "document")
        ),
        (
            "chat_completions",
            chat(structured_outputs={"regex": "a"}, tools=[CHAT_TOOL]),
            "structured_outputs should not be used with tools",
        ),
        (
            "chat_completions",
            chat(structured_outputs={"regex": "a"}, response_format={"type": "regex", "regex": "b"}),
            "structured_outputs should not be used with response_format",
        ),
        (
            "messages",
            messages(output_format={"type": "json_schema", "schema": {"type": "nope"}}),
            "Invalid json schema",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_words_that_say_what(protocol: str, body: Json, told: str) -> None:
    assert refusal(protocol, body).startswith(told)


def test_the_fields_of_a_file_may_stand_in_an_object_of_their_own() -> None:
    file = {"filename": "a.png", "file_data": "data:image/png;base64,AAAA"}
    for block in ({"type": "file", **file}, {"type": "file", "file": file}):
        [message] = convert("chat_completions", chat(user([block]))).conversation.messages
        assert [source.data_url for source in message.image_sources] == [file["file_data"]]


def test_what_is_kept_elsewhere_is_left_out_without_the_extension_as_in_the_reference() -> None:
    off = ConversionOptions()
    stored = responses(input=[user([{"type": "input_file", "file_id": "x"}]), {"type": "item_reference", "id": "x"}])
    [message] = convert("responses", stored, off).conversation.messages
    assert message.content == "[Unsupported Document]"
    nested = chat(user([{"type": "file", "file": {"file_id": "x"}}]), model=V4)
    [message] = convert("chat_completions", nested, off).conversation.messages
    assert message.content == "[Unsupported Image]"
    document = user([{"type": "document", "source": {"type": "file", "file_id": "x"}}])
    [message] = convert("messages", messages(document, model=V4), off).conversation.messages
    assert message.content == "[Unsupported document type: unknown]"


def test_an_explicit_thinking_type_wins_over_the_switches_and_these_over_an_effort() -> None:
    assert convert("chat_completions", chat(thinking=OFF, enable_thinking=True)).conversation.thinking_mode is False
    kwargs = {"chat_template_kwargs": {"thinking": True}, "enable_thinking": False}
    assert convert("chat_completions", chat(**kwargs, reasoning_effort="low")).conversation.thinking_mode is False
    assert convert("chat_completions", chat(enable_thinking=True)).conversation.reasoning_effort == "high"


def test_reasoning_of_history_may_stand_under_either_name_and_the_older_wins() -> None:
    body = chat(user(), assistant("a", reasoning="new"), user(), assistant("b", reasoning="n", reasoning_content="o"))
    reasoning = [message.reasoning_content for message in convert("chat_completions", body).conversation.messages]
    assert reasoning == [None, "new", None, "o"]


def test_no_prompt_opens_the_block_of_calls_before_the_model_has_thought() -> None:
    request = convert("chat_completions", chat(tools=[CHAT_TOOL], tool_choice="required"))
    text = recipe.DeepseekV41Encoding().render_conversation(request.conversation).prompt
    assert text.endswith("<think>")


@pytest.mark.parametrize(("model", "encoding"), [(V4, recipe.DeepseekV4Encoding), (None, recipe.DeepseekV41Encoding)])
def test_a_prompt_with_a_prefill_ends_with_it_also_where_a_call_is_demanded(model: str | None, encoding: Any) -> None:
    body = messages(user(), assistant("The answer: "), tools=[TOOL], tool_choice={"type": "any"}, thinking=OFF)
    request = convert("messages", body | ({"model": model} if model else {}))
    assert encoding().render_conversation(request.conversation).prompt.endswith("The answer: ")
    assert request.parsing_options.starts_in_tool_calls is False
    constraint = request.inference_options.output_constraint
    assert constraint is not None and constraint.kind == "tool_call_required"


def test_min_tokens_must_fit_into_what_can_be_generated() -> None:
    request = convert("chat_completions", chat(min_tokens=5, max_tokens=4))
    with pytest.raises(ConversionError, match="min_tokens"):
        request.resolve_max_tokens(10, 100)


USES_EXTENSIONS = frozenset(
    (
        "chat.files",
        "chat.max_tokens",
        "chat.messages",
        "chat.unknown_fields",
        "messages.effort",
        "messages.history",
        "messages.messages",
        "messages.reasoning_behavior",
        "messages.tool_choice",
        "messages.unknown_fields",
        "responses.images",
        "responses.rawbody",
        "responses.sampling",
        "responses.unknown_fields",
    )
)
"""Families of golden cases with accepted requests that use an extension; those of all others mean the same."""


def test_a_request_that_the_reference_accepts_means_the_same_with_all_extensions() -> None:
    accepted = [case for case in golden_cases() if case["kind"] == "convert" and "converted" in case["expected"]]
    changed = set()
    for case in (case for case in accepted if case["family"] not in USES_EXTENSIONS):
        spec = case["input"]
        options = make_options(recipe, spec.get("options")).with_extensions(Extensions.all())
        request = request_class(recipe, spec["protocol"])(body_value(spec["body"]), extended=True)
        if differences(case["expected"]["converted"], obs_converted(recipe, request.convert(options))):
            changed.add(case["id"])
    assert len(accepted) > 1000
    assert not changed


def test_extensions_know_nothing_of_a_body_that_was_read_without_them() -> None:
    request: ConversationRequest = REQUESTS["messages"](messages(top_k=3)).convert(ALL)
    assert request.inference_options.top_k == 0


@pytest.mark.parametrize(
    ("fields", "parallel", "metadata"),
    [({}, True, {}), ({"parallel_tool_calls": False, "metadata": {"a": "b"}}, False, {"a": "b"})],
    ids=["nothing said", "said"],
)
def test_a_response_reports_metadata_and_whether_calls_may_be_parallel(
    fields: Json, parallel: bool, metadata: Json
) -> None:
    request = convert("responses", responses(**fields))
    generator = ResponsesRequest.chunk_generator(request, "r", "m")
    processor = recipe.StreamProcessor(generator, request.parsing_options)
    created = json.loads(processor.push(recipe.InferenceChunk.ready())[0].to_json())["response"]
    assert (created["parallel_tool_calls"], created["metadata"]) == (parallel, metadata)
