"""Constraints as remote engines get them; with xgrammar at hand, the tags are compiled and tried."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.backend import ConstraintRefusedError
from engine.backends.remote_constraint import alternatives_regex, structured_output
from recipe.request import OutputConstraint

TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            },
        },
    ]
)
NUMBER = '{"type":"integer"}'
V41_CALL = (
    '<｜DSML｜ calls>\n<｜DSML｜ invoke name="get_weather">\n<｜DSML｜ parameter name="city" string="true">Paris'
    "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)
V4_CALL = (
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
HERMES_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def tool_call(kind: str, markup: str, **fields: Any) -> OutputConstraint:
    return OutputConstraint(kind, TOOLS, tool_markup=markup, **fields)


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        (OutputConstraint("json", NUMBER), ("json", {"type": "integer"})),
        (OutputConstraint("json", ""), ("json", {"type": "object"})),
        (OutputConstraint("regex", "a+"), ("regex", "a+")),
        (OutputConstraint("choice", '["a","b"]'), ("choice", ["a", "b"])),
        (OutputConstraint("grammar", 'root ::= "a"'), ("grammar", 'root ::= "a"')),
    ],
)
def test_what_binds_from_the_first_token_on_is_a_plain_field(
    constraint: OutputConstraint, field: tuple[str, Any]
) -> None:
    assert structured_output(constraint) == field


@pytest.mark.parametrize(
    ("constraint", "named"),
    [
        (OutputConstraint("poem", ""), "poem"),
        (OutputConstraint("json", "{"), "no JSON"),
        (OutputConstraint("choice", "[]"), "choice"),
        (OutputConstraint("tool_call", "[]", tool_markup="hermes"), "no tool"),
        (OutputConstraint("tool_call", "[1]", tool_markup="hermes"), "tools"),
        (tool_call("tool_call_required", "mistral"), "mistral"),
        (OutputConstraint("grammar", 'start: "a"', begins_after="</think>"), "EBNF"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(constraint: OutputConstraint, named: str) -> None:
    with pytest.raises(ConstraintRefusedError, match=named):
        structured_output(constraint)


def test_choices_become_a_regular_expression_of_exactly_these_texts() -> None:
    assert alternatives_regex(["a|b", "(c)", "d"]) == r"(a\|b|\(c\)|d)"


TRIES = [
    (
        OutputConstraint("json", NUMBER, begins_after="</think>"),
        ["hm</think>\n\n12", "</think>7"],
        ["12", "hm</think>x"],
    ),
    (
        OutputConstraint("json", NUMBER, begins_after="</think>", reasoning_start="<think>"),
        ["<think>hm</think>12", "12"],
        ["hm</think>12"],
    ),
    (OutputConstraint("regex", "a+", begins_after="</think>"), ["x</think>\naa"], ["x</think>b", "aa"]),
    (OutputConstraint("choice", '["yes","no"]', begins_after="</think>"), ["x</think>no"], ["x</think>maybe", "no"]),
    (tool_call("tool_call_required", "deepseek-v4.1"), ["\n\n" + V41_CALL], [V41_CALL, "hello", "\n\n" + V4_CALL]),
    (
        tool_call("tool_call_required", "deepseek-v4.1", begins_after="</think>"),
        ["hm</think>\n\n" + V41_CALL],
        ["\n\n" + V41_CALL],
    ),
    (
        tool_call("tool_call_required", "deepseek-v4.1", in_tool_block=True),
        [V41_CALL.partition("\n")[2]],
        ["\n\n" + V41_CALL],
    ),
    (tool_call("tool_call_required", "deepseek-v4"), ["\n\n" + V4_CALL], ["\n\n" + V41_CALL]),
    (tool_call("tool_call", "deepseek-v4.1"), ["hello", "hm\n\n" + V41_CALL], [V41_CALL.replace("city", "town")]),
    (tool_call("tool_call_required", "hermes"), [HERMES_CALL, f"{HERMES_CALL}\n{HERMES_CALL}"], ["hello"]),
    (
        tool_call("tool_call_required", "hermes", single_call=True),
        [HERMES_CALL],
        [f"{HERMES_CALL}\n{HERMES_CALL}"],
    ),
    (
        tool_call("tool_call", "hermes"),
        ["hello", f"first {HERMES_CALL}"],
        [HERMES_CALL.replace("Paris", 'Paris", "x": "')],
    ),
]


@pytest.mark.parametrize(("constraint", "taken", "refused"), TRIES)
def test_a_structural_tag_takes_what_it_should_and_nothing_else(
    constraint: OutputConstraint, taken: list[str], refused: list[str]
) -> None:
    xgrammar = pytest.importorskip("xgrammar", reason="trying the tags needs the oracle extra (xgrammar)")
    name, tag = structured_output(constraint)
    assert name == "structural_tag"
    grammar = xgrammar.Grammar.from_structural_tag(json.dumps(tag))
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo([chr(i) for i in range(128)]))
    compiled = compiler.compile_grammar(grammar)

    def accepts(text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)
        return bool(matcher.accept_string(text)) and bool(matcher.is_completed())

    assert [text for text in taken if not accepts(text)] == []
    assert [text for text in refused if accepts(text)] == []
