"""Each extension, on and off. Off, a request leads to what it leads to in the reference."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import deepseek_recipe
import pytest

import recipe
from recipe.errors import ConversionError
from recipe.extensions import Extensions
from recipe.request import ConversationRequest, ConversionOptions
from recipe.stream.parsing_options import ThinkingInitialStage
from tests.oracle.outcome import Json
from tests.oracle.report import against_reference
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


def observed(request: ConversationRequest) -> dict[str, Any]:
    """What extensions change of a request, flat."""
    conversation, inference, parsing = request.conversation, request.inference_options, request.parsing_options
    constraint = inference.output_constraint
    last = conversation.messages[-1]
    return {
        "roles": [message.role for message in conversation.messages],
        "last": (last.content, last.reasoning_content, last.prefix),
        "thinking": conversation.thinking_mode,
        "choice": conversation.tool_choice,
        "tools": [tool.name for tool in conversation.tools],
        "format": conversation.response_format,
        "kind": constraint and constraint.kind,
        "schema": constraint and constraint.schema,
        "single_call": constraint and constraint.single_call,
        "opens_block": parsing.starts_in_tool_calls,
        "stage": parsing.thinking_initial_stage,
        "stops": parsing.stop_sequences,
        **{name: getattr(inference, name) for name in inference.__struct_fields__},
    }


@dataclass(frozen=True)
class Case:
    """A request that an extension gives a meaning, and what comes of it."""

    extension: str
    protocol: str
    body: Json
    expected: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.protocol}-{self.extension}-{'-'.join(self.expected)}"


START, CONTINUES = ThinkingInitialStage.ReasoningStart, ThinkingInitialStage.ContentContinuation
REQUIRED_IN_THINKING = {"kind": "tool_call_required", "choice": "auto", "opens_block": False, "stage": START}
REQUIRED_AT_ONCE = {"kind": "tool_call_required", "choice": "required", "opens_block": True}
SCHEMA = {"type": "object"}

CASES = [
    Case("developer_role", "chat_completions", chat({"role": "developer", "content": "x"}), {"roles": ["system"]}),
    Case(
        "null_content",
        "chat_completions",
        chat(user(), assistant(None, reasoning_content="r"), user()),
        {"roles": ["user", "assistant", "user"]},
    ),
    Case("max_completion_tokens", "chat_completions", chat(max_completion_tokens=5), {"max_tokens": 5}),
    Case("max_completion_tokens", "chat_completions", chat(max_completion_tokens=5, max_tokens=7), {"max_tokens": 5}),
    Case("max_n", "chat_completions", chat(n=3), {"n": 3}),
    Case("prefill", "messages", messages(user(), assistant("a")), {"last": ("a", "", True), "stage": CONTINUES}),
    Case("prefill", "messages", messages(user(), assistant("a"), thinking=OFF), {"last": ("a", None, True)}),
    Case(
        "prefill",
        "chat_completions",
        chat(user(), assistant("a"), continue_final_message=True, add_generation_prompt=False),
        {"last": ("a", "", True), "stage": CONTINUES},
    ),
    Case(
        "any_requires_call",
        "messages",
        messages(tools=[TOOL], tool_choice={"type": "any"}, thinking=OFF),
        REQUIRED_AT_ONCE,
    ),
    Case("any_requires_call", "messages", messages(tools=[TOOL], tool_choice={"type": "any"}), REQUIRED_IN_THINKING),
    Case("custom_tool_type", "messages", messages(tools=[TOOL | {"type": "custom"}]), {"tools": ["f"]}),
    Case(
        "output_format",
        "messages",
        messages(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}),
        {"kind": "json", "schema": '{"type":"object"}', "format": "json_schema"},
    ),
    Case(
        "output_format", "messages", messages(output_format={"type": "json_schema", "schema": True}), {"kind": "json"}
    ),
    Case(
        "single_call",
        "chat_completions",
        chat(tools=[CHAT_TOOL], parallel_tool_calls=False),
        {"kind": "tool_call", "single_call": True},
    ),
    Case(
        "single_call",
        "responses",
        responses(tools=[{"type": "function", "name": "f"}], parallel_tool_calls=False),
        {"single_call": True},
    ),
    Case(
        "single_call",
        "messages",
        messages(tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True}),
        {"kind": "tool_call", "single_call": True},
    ),
    Case(
        "required_call_after_thinking",
        "chat_completions",
        chat(tools=[CHAT_TOOL], tool_choice="required"),
        REQUIRED_IN_THINKING,
    ),
    Case(
        "required_call_after_thinking",
        "responses",
        responses(tools=[{"type": "function", "name": "f"}], tool_choice={"type": "function", "name": "f"}),
        REQUIRED_IN_THINKING,
    ),
    Case(
        "required_call_after_thinking",
        "messages",
        messages(tools=[TOOL, TOOL | {"name": "g"}], tool_choice={"type": "tool", "name": "g"}),
        REQUIRED_IN_THINKING | {"tools": ["g"]},
    ),
    Case("sampling", "responses", responses(stop="x"), {"stops": ["x"]}),
    Case("sampling", "responses", responses(include=["message.output_text.logprobs"]), {"logprobs": True}),
    Case("template_arguments", "chat_completions", chat(enable_thinking=False), {"thinking": False, "stage": None}),
    Case("template_arguments", "messages", messages(chat_template_kwargs={"thinking": False}), {"thinking": False}),
    *(
        Case("structured_outputs", protocol, body(structured_outputs=wanted), {"kind": kind, "schema": schema})
        for protocol, body in (("chat_completions", chat), ("responses", responses), ("messages", messages))
        for wanted, kind, schema in (
            ({"json": SCHEMA}, "json", '{"type":"object"}'),
            ({"json": '{"type": "object"}'}, "json", '{"type":"object"}'),
            ({"json_object": True}, "json", ""),
            ({"regex": "a+"}, "regex", "a+"),
            ({"choice": ["a", "b"]}, "choice", '["a","b"]'),
            ({"grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        )
    ),
]
SAMPLING: dict[str, tuple[Any, Any]] = {
    "top_k": (3, 3),
    "min_p": (0.5, 0.5),
    "repetition_penalty": (1.5, 1.5),
    "presence_penalty": (1, 1.0),
    "frequency_penalty": (-1.5, -1.5),
    "seed": (7, 7),
    "logit_bias": ({"5": -100, "6": 1.5}, {5: -100.0, 6: 1.5}),
    "min_tokens": (2, 2),
    "stop_token_ids": ([1, 2], [1, 2]),
    "bad_words": (["x"], ["x"]),
    "ignore_eos": (True, True),
    "priority": (-3, -3),
    "cache_salt": ("s", "s"),
}
SWITCH_OF = {"priority": "scheduling", "cache_salt": "scheduling"}
CASES += [
    Case(SWITCH_OF.get(name, "sampling"), protocol, body(**{name: given}), {name: taken})
    for protocol, body in (("chat_completions", chat), ("responses", responses), ("messages", messages))
    for name, (given, taken) in SAMPLING.items()
    if (protocol, name) != ("chat_completions", "seed")  # a field of the protocol
]


def only(extension: str) -> ConversionOptions:
    value: Any = 16 if extension == "max_n" else True
    needed = {"any_requires_call": {"required_call_after_thinking": True}}.get(extension, {})
    return ConversionOptions().with_extensions(Extensions(**{extension: value, **needed}))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_extension_does_what_it_says_alone_and_with_all_others(case: Case) -> None:
    for options in (only(case.extension), ALL):
        found = observed(convert(case.protocol, case.body, options))
        assert {name: found[name] for name in case.expected} == case.expected


@pytest.mark.parametrize("case", CASES, ids=str)
def test_without_its_switch_an_extension_does_nothing(case: Case) -> None:
    off = replace(Extensions.all(max_n=16), **{case.extension: 1 if case.extension == "max_n" else False})
    try:
        found = observed(convert(case.protocol, case.body, ConversionOptions().with_extensions(off)))
    except (ConversionError, ValueError):
        return  # as the reference does
    assert {name: found[name] for name in case.expected} != case.expected


def test_without_extensions_every_such_request_leads_to_the_outcome_of_the_reference() -> None:
    cases = [
        {"id": str(case), "family": "x", "kind": "convert", "input": {"protocol": case.protocol, "body": body}}
        for case in CASES
        for body in ({"json": case.body}, {"text": json.dumps(case.body)})
    ]
    tally = against_reference(recipe, deepseek_recipe, cases)
    assert not tally.failed, str(tally)
    assert tally.counts["identical"] == len(cases)


def test_every_extension_has_a_case() -> None:
    assert {case.extension for case in CASES} == set(Extensions.__dataclass_fields__) - {"refusals", "usage_chunk"}
