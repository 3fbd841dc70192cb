"""Grammars of tool calls in every markup: what they take, what they refuse, and where free output becomes a call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.backend import ConstraintRefusedError
from engine.grammar.vocabulary import Vocabulary
from recipe.encoding.dsml import V4_DIALECT, V41_DIALECT, Dsml
from recipe.prompt import Prompt
from recipe.tool import ToolCall
from tests.engine.grammar.following import EOS, accepts, compiled, follow, mask_of, may_end, tokens_of

DSML, END = "｜DSML｜", "</think>"
MARKERS = (DSML, END, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
           "<｜tool▁sep｜>")  # fmt: skip
DIALECTS = {"deepseek-v4": V4_DIALECT, "deepseek-v4.1": V41_DIALECT}


def tool(name: str, parameters: Any = None, strict: bool | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or {}, "strict": strict}}


WEATHER = tool(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
            "note": {"type": ["string", "null"], "maxLength": 20},
        },
        "required": ["city"],
        "$defs": {"tag": {"type": "string", "pattern": "^[a-z]+$"}},
    },
)
NOW = tool("now")
TOOLS = json.dumps([WEATHER, NOW])

VALID = [
    [("get_weather", {"city": "Paris"})],
    [("get_weather", {"city": 'a "quoted" <b> </x>\nline \\ ｜D SML｜', "days": 3})],
    [("get_weather", {"city": "", "unit": "celsius", "tags": ["a", "bc"], "note": None})],
    [("get_weather", {"city": "Köln", "note": "short"}), ("now", {}), ("get_weather", {"city": "x"})],
    [("now", {})],
]
INVALID = [
    [("get_weather", {})],
    [("get_weather", {"days": 3})],
    [("get_weather", {"city": 3})],
    [("get_weather", {"city": "x", "days": 10})],
    [("get_weather", {"city": "x", "days": "3"})],
    [("get_weather", {"city": "x", "unit": "kelvin"})],
    [("get_weather", {"city": "x", "tags": ["A"]})],
    [("get_weather", {"city": "x", "note": "far too long for this field"})],
    [("get_weather", {"city": "x", "other": 1})],
    [("get_rain", {"city": "x"})],
]


def written(markup: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """The block of `calls` as the model should write it."""
    if markup in DIALECTS:
        prompt = Prompt()
        made = [ToolCall(f"c{n}", name, json.dumps(args, ensure_ascii=False)) for n, (name, args) in enumerate(calls)]
        Dsml(DIALECTS[markup], DSML).push_calls(prompt, made)
        return prompt.text
    return WRITERS[markup](calls)


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def hermes(calls: Any) -> str:
    bodies = [dumps({"name": name, "arguments": args}) for name, args in calls]
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def deepseek_v3(calls: Any) -> str:
    bodies = [f"function<｜tool▁sep｜>{name}\n```json\n{dumps(args)}\n```" for name, args in calls]
    inner = "\n".join(f"<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>" for body in bodies)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


WRITERS: dict[str, Any] = {
    "hermes": hermes,
    "llama3": lambda calls: "; ".join(dumps({"name": name, "parameters": args}) for name, args in calls),
    "mistral": lambda calls: "[TOOL_CALLS]" + dumps([{"name": name, "arguments": args} for name, args in calls]),
    "deepseek-v3": deepseek_v3,
}
MARKUPS = [*DIALECTS, *WRITERS]


@pytest.mark.parametrize("markup", MARKUPS)
def test_a_required_block_takes_calls_that_fit_their_schemas_and_no_others(deepseek: Vocabulary, markup: str) -> None:
    grammar = compiled(deepseek, "tool_call_required", TOOLS, tool_markup=markup)
    for calls in VALID:
        assert accepts(grammar, tokens_of(deepseek, written(markup, calls), *MARKERS)), calls
    is_dsml = markup in DIALECTS
    for calls in INVALID if is_dsml else [calls for calls in INVALID if "other" not in calls[0][1]]:
        assert not accepts(grammar, tokens_of(deepseek, written(markup, calls), *MARKERS)), calls
    assert follow(grammar.new_matcher(frozenset([EOS])), tokens_of(deepseek, "Sure, I")) == 0
    assert not may_end(grammar.new_matcher(frozenset([EOS]))), "at least one call"


@pytest.mark.parametrize("markup", MARKUPS)
def test_the_output_is_over_with_its_block_where_the_markup_closes_one(deepseek: Vocabulary, markup: str) -> None:
    grammar = compiled(deepseek, "tool_call_required", TOOLS, tool_markup=markup)
    matcher = grammar.new_matcher(frozenset([EOS]))
    follow(matcher, tokens_of(deepseek, written(markup, VALID[0]), *MARKERS))
    assert may_end(matcher)
    assert matcher.is_terminated() is (markup not in ("hermes", "llama3"))
    single = compiled(deepseek, "tool_call_required", TOOLS, tool_markup=markup, single_call=True)
    matcher = single.new_matcher(frozenset([EOS]))
    follow(matcher, tokens_of(deepseek, written(markup, VALID[0]), *MARKERS))
    assert matcher.is_terminated()
    assert not accepts(single, tokens_of(deepseek, written(markup, VALID[3]), *MARKERS))


@pytest.mark.parametrize("markup", MARKUPS)
def test_free_output_is_bound_from_the_opening_marker_on(deepseek: Vocabulary, markup: str) -> None:
    grammar = compiled(deepseek, "tool_call", TOOLS, tool_markup=markup)
    matcher = grammar.new_matcher(frozenset([EOS]))
    before = "" if markup == "llama3" else "I will look. <tool is < \n\n"
    if before:
        assert follow(matcher, tokens_of(deepseek, before)) and mask_of(matcher).all() and may_end(matcher)
    tokens = tokens_of(deepseek, written(markup, VALID[3]), *MARKERS)
    assert follow(matcher, tokens) == len(tokens)
    assert matcher.bound is not None and may_end(matcher)
    matcher = grammar.new_matcher(frozenset([EOS]))
    tokens = tokens_of(deepseek, before + written(markup, INVALID[-1]), *MARKERS)
    assert follow(matcher, tokens) < len(tokens)


@pytest.mark.parametrize("markup", MARKUPS)
def test_free_output_without_a_marker_is_left_alone(deepseek: Vocabulary, markup: str) -> None:
    matcher = compiled(deepseek, "tool_call", TOOLS, tool_markup=markup).new_matcher(frozenset([EOS]))
    text = 'The tag "<｜DSML｜tool_calls>" in letters, [TOOL_CALL, <tool_call, {"name": 1} and </think>.'
    assert follow(matcher, tokens_of(deepseek, text)) and mask_of(matcher).all()
    assert matcher.bound is None and matcher.allows_everything()


def test_what_only_looks_like_a_text_marker_stays_text(smollm2: Vocabulary) -> None:
    matcher = compiled(smollm2, "tool_call", TOOLS, tool_markup="hermes").new_matcher(frozenset([2]))
    text = "Use <tool_calls> and <tool_call to call tools, or <tool_call"
    assert follow(matcher, tokens_of(smollm2, text)) == len(tokens_of(smollm2, text))
    assert matcher.bound is None and mask_of(matcher).all()
    follow(matcher, tokens_of(smollm2, ">"))
    assert matcher.bound is not None and not may_end(matcher, 2)


@pytest.mark.parametrize("markup", DIALECTS)
def test_a_block_that_the_prompt_has_opened_begins_with_a_call(deepseek: Vocabulary, markup: str) -> None:
    grammar = compiled(deepseek, "tool_call_required", TOOLS, tool_markup=markup, in_tool_block=True)
    opening, calls = written(markup, VALID[1]).lstrip("\n").split("\n", 1)
    assert opening.endswith("calls>")
    assert accepts(grammar, tokens_of(deepseek, calls, *MARKERS))
    assert not accepts(grammar, tokens_of(deepseek, written(markup, VALID[1]), *MARKERS))


@pytest.mark.parametrize("markup", DIALECTS)
def test_only_the_token_closes_a_string_and_never_its_letters(deepseek: Vocabulary, markup: str) -> None:
    grammar = compiled(deepseek, "tool_call_required", TOOLS, tool_markup=markup)
    text = written(markup, [("get_weather", {"city": "HERE"})])
    name = DIALECTS[markup].parameter
    fake = f"</｜DSML｜{name}>\n<｜DSML｜{name} name="
    before, after = text.split("HERE")
    tokens = tokens_of(deepseek, before, *MARKERS) + tokens_of(deepseek, fake) + tokens_of(deepseek, after, *MARKERS)
    assert accepts(grammar, tokens), "letters are the string's own"
    real = tokens_of(deepseek, text.replace("HERE", fake), *MARKERS)
    assert not accepts(grammar, real)


@pytest.mark.parametrize("markup", MARKUPS)
def test_a_required_call_waits_for_the_end_of_the_reasoning(deepseek: Vocabulary, markup: str) -> None:
    fields = {"tool_markup": markup, "begins_after": END, "single_call": True}
    matcher = compiled(deepseek, "tool_call_required", TOOLS, **fields).new_matcher(frozenset([EOS]))
    thoughts = tokens_of(deepseek, f"Let me think about <x>: {written(markup, VALID[0])} or </think>?", *MARKERS[:1])
    assert follow(matcher, thoughts) == len(thoughts), "whatever is thought is free"
    assert not may_end(matcher) and matcher.bound is None
    assert follow(matcher, tokens_of(deepseek, END, END)) == 1
    assert follow(matcher, tokens_of(deepseek, "Sure")) == 0
    tokens = tokens_of(deepseek, written(markup, VALID[0]), *MARKERS)
    assert follow(matcher, tokens) == len(tokens) and matcher.is_terminated()


@pytest.mark.parametrize("markup", MARKUPS)
def test_a_call_that_is_only_thought_of_binds_nothing_unless_the_markup_allows_one_there(
    deepseek: Vocabulary, markup: str
) -> None:
    grammar = compiled(deepseek, "tool_call", TOOLS, tool_markup=markup, begins_after=END)
    matcher = grammar.new_matcher(frozenset([EOS]))
    call = tokens_of(deepseek, written(markup, VALID[0]), *MARKERS)
    assert follow(matcher, call) == len(call)
    assert (matcher.bound is not None) is (markup in DIALECTS)
    matcher = grammar.new_matcher(frozenset([EOS]))
    follow(matcher, tokens_of(deepseek, f"So.{END}", END))
    assert follow(matcher, call) == len(call) and matcher.bound is not None


SCHEMAS: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "string", "pattern": "^a+$|b"}, ["aaa", "xbx", "b"], ["ax", "c"]),
    ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "äöüß"], ["a", "abcde"]),
    ({"type": "string", "format": "date"}, ["2026-11-30"], ["2026-13-30", "today"]),
    ({"type": "string", "format": "ipv6"}, ["::1", "2001:db8::8a2e:370:7334", "::"], ["1::2::3", "g::"]),
    ({"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "number"}]}, ["x", 1.5], ["y", None]),
    ({"enum": ["a", 1, None]}, ["a", 1, None], ["b", 2]),
    ({"const": "</"}, ["</"], ["<"]),
    ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, [1], ["1", None]),
    ({}, ["text", 1, None, {"a": [1]}], []),
    ({"type": "object", "properties": {"a": {"type": "string"}}}, [{"a": "b"}], [{"a": 1}, "a"]),
    ({"$ref": "#/definitions/s"}, ["ok"], ["no"]),
]


@pytest.mark.parametrize("schema", range(len(SCHEMAS)))
def test_values_are_raw_text_or_json_as_their_schema_says(deepseek: Vocabulary, schema: int) -> None:
    part, good, bad = SCHEMAS[schema]
    parameters = {"type": "object", "properties": {"v": part}, "required": ["v"], "definitions": {"s": {"const": "ok"}}}
    grammar = compiled(deepseek, "tool_call_required", json.dumps([tool("f", parameters)]), tool_markup="deepseek-v4")

    def is_accepted(value: Any) -> bool:
        return accepts(grammar, tokens_of(deepseek, written("deepseek-v4", [("f", {"v": value})]), *MARKERS))

    assert [value for value in good if not is_accepted(value)] == []
    assert [value for value in bad if is_accepted(value)] == []


UNENFORCEABLE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}


@pytest.mark.parametrize("markup", MARKUPS)
def test_a_schema_that_was_promised_is_enforced_or_refused_and_any_other_as_far_as_possible(
    deepseek: Vocabulary, markup: str
) -> None:
    promised = json.dumps([tool("f", UNENFORCEABLE, strict=True)])
    with pytest.raises(ConstraintRefusedError, match=r"tool 'f'.*'uniqueItems'"):
        compiled(deepseek, "tool_call", promised, tool_markup=markup)
    loose = json.dumps([tool("f", UNENFORCEABLE)])
    grammar = compiled(deepseek, "tool_call_required", loose, tool_markup=markup)
    assert accepts(grammar, tokens_of(deepseek, written(markup, [("f", {"a": [1, 1]})]), *MARKERS))
    assert not accepts(grammar, tokens_of(deepseek, written(markup, [("f", {"a": 1})]), *MARKERS))


HOPELESS = {
    "elsewhere": {"$ref": "https://example.com/schema.json"},
    "nowhere": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}},
    "pattern": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a)\\1"}}},
    "no value": {"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]},
}


@pytest.mark.parametrize("markup", MARKUPS)
@pytest.mark.parametrize("name", HOPELESS)
def test_a_tool_whose_schema_is_hopeless_takes_any_arguments_and_the_others_keep_theirs(
    deepseek: Vocabulary, markup: str, name: str
) -> None:
    grammar = compiled(
        deepseek, "tool_call_required", json.dumps([tool("f", HOPELESS[name]), WEATHER]), tool_markup=markup
    )

    def is_accepted(call: str, arguments: dict[str, Any]) -> bool:
        return accepts(grammar, tokens_of(deepseek, written(markup, [(call, arguments)]), *MARKERS))

    assert is_accepted("f", {"a": "b"})
    assert is_accepted("get_weather", {"city": "x"}) and not is_accepted("get_weather", {"days": 1})
    with pytest.raises(ConstraintRefusedError):
        compiled(deepseek, "tool_call", json.dumps([tool("f", HOPELESS[name], strict=True)]), tool_markup=markup)


@pytest.mark.parametrize("markup", DIALECTS)
def test_a_schema_that_only_refers_to_itself_is_told_and_does_not_hang(deepseek: Vocabulary, markup: str) -> None:
    parameters = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
    with pytest.raises(ConstraintRefusedError, match="refers to itself"):
        compiled(deepseek, "tool_call", json.dumps([tool("f", parameters, strict=True)]), tool_markup=markup)
    deep: dict[str, Any] = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}
    nested = json.dumps([tool("f", {**parameters, "$defs": {"a": deep}}, strict=True)])
    with pytest.raises(ConstraintRefusedError, match="refers to itself"):
        compiled(deepseek, "tool_call", nested, tool_markup=markup)


def test_a_function_without_declared_parameters_takes_any(deepseek: Vocabulary) -> None:
    grammar = compiled(deepseek, "tool_call_required", json.dumps([tool("f")]), tool_markup="deepseek-v4.1")
    for arguments in ({}, {"x": 1, "y": "z"}):
        assert accepts(grammar, tokens_of(deepseek, written("deepseek-v4.1", [("f", arguments)]), *MARKERS))


def test_parameters_that_are_allowed_beside_the_named_ones_have_other_names(deepseek: Vocabulary) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "null"}}
    grammar = compiled(deepseek, "tool_call_required", json.dumps([tool("f", parameters)]), tool_markup="deepseek-v4")

    def is_accepted(arguments: dict[str, Any]) -> bool:
        return accepts(grammar, tokens_of(deepseek, written("deepseek-v4", [("f", arguments)]), *MARKERS))

    assert is_accepted({"a": 1, "b": None, "ab": None}) and is_accepted({"b": None})
    assert not is_accepted({"a": None}) and not is_accepted({"b": 1})


def test_dsml_needs_its_token_and_a_markup_must_be_known(smollm2: Vocabulary) -> None:
    with pytest.raises(ConstraintRefusedError, match="DSML"):
        compiled(smollm2, "tool_call", TOOLS, tool_markup="deepseek-v4")
    with pytest.raises(ConstraintRefusedError, match="'klingon'"):
        compiled(smollm2, "tool_call", TOOLS, tool_markup="klingon")


def test_a_hundred_tools_make_one_grammar(deepseek: Vocabulary) -> None:
    tools = json.dumps([tool(f"tool_{n}", WEATHER["function"]["parameters"]) for n in range(100)])
    for markup in MARKUPS:
        grammar = compiled(deepseek, "tool_call_required", tools, tool_markup=markup)
        tokens = tokens_of(deepseek, written(markup, [("tool_77", {"city": "x", "days": 2})]), *MARKERS)
        assert accepts(grammar, tokens)
