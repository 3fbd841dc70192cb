"""Real-world schemas with valid and invalid instances: what the grammars accept, refuse and cannot enforce."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLParserLimits

from engine.backend import ConstraintRefusedError
from engine.grammar import compiler
from engine.grammar.vocabulary import Vocabulary
from tests.engine.grammar.following import compiled

SAMPLE = Path(__file__).with_name("schemas.jsonl.gz")

# Valid instances that are refused, and why: properties must come in the order of the schema, a pattern must not be
# too hard to follow beside a length.
REFUSED_INSTANCES = {
    "Github_hard---o61003": "order",
    "Github_hard---o62061": "pattern and maxLength",
    "Github_medium---o71265": "order",
    "Github_medium---o57617": "order",
    "Github_trivial---o25751": "order",
    "JsonSchemaStore---drupal-libraries": "order",
}
UNENFORCED = {"not", "dependencies", "format", "minProperties", "propertyNames", "uniqueItems"}
NUM_REFUSED_SCHEMAS = 43


def sample() -> Iterator[dict[str, Any]]:
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def accepts(grammar: Any, vocabulary: Vocabulary, text: str) -> bool:
    matcher = grammar.new_matcher(frozenset([2]))
    tokens = vocabulary.encode(text.encode())
    return matcher.bound.try_consume_tokens(tokens) == len(tokens) and matcher.bound.is_accepting()


@pytest.mark.parametrize("indent", [None, 2])
def test_no_invalid_instance_is_accepted_and_no_valid_one_refused_but_for_the_known(
    smollm2: Vocabulary, indent: int | None
) -> None:
    refused_schemas, refused, accepted, wrong = [], set(), 0, []
    for row in sample():
        try:
            grammar = compiled(smollm2, "json", json.dumps(row["schema"]))
        except ConstraintRefusedError as error:
            refused_schemas.append(str(error))
            continue
        for test in row["tests"]:
            text = json.dumps(test["data"], indent=indent, ensure_ascii=False)
            is_accepted = accepts(grammar, smollm2, text)
            accepted += is_accepted
            if is_accepted and not test["valid"]:
                wrong.append((row["id"], test["description"]))
            elif test["valid"] and not is_accepted:
                refused.add(row["id"])
    assert wrong == []
    assert refused <= set(REFUSED_INSTANCES)
    assert accepted >= 330
    assert len(refused_schemas) <= NUM_REFUSED_SCHEMAS
    assert all(any(f"keyword {keyword!r} at /" in text for keyword in UNENFORCED) for text in refused_schemas)


REFUSALS = [
    ({"properties": {"a": {"not": {"type": "string"}}}}, "'not' at /properties/a/not"),
    ({"items": {"anyOf": [{"type": "null"}, {"uniqueItems": True}]}}, "'uniqueItems' at /items/anyOf/1/uniqueItems"),
    (
        {"$defs": {"a/b": {"type": "string", "format": "html"}}, "$ref": "#/$defs/a~1b"},
        "'format' at /$defs/a~1b/format",
    ),
    ({"properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}, "'pattern' at /properties/a/pattern"),
    (
        {"properties": {"a": {"patternProperties": {"a": {"type": "integer"}, "ab": {"type": "string"}}}}},
        "'patternProperties' at /properties/a/patternProperties",
    ),
    ({"properties": {"a": {"$ref": "#/nowhere"}}}, "'$ref' at /properties/a/$ref"),
    ({"if": {"type": "object"}, "then": {"required": ["a"]}}, "'if' at /if"),
    ({"type": "object", "properties": {"a": {}}, "maxProperties": 1}, "'maxProperties' at /maxProperties"),
    ({"type": "integer", "minimum": 4, "maximum": 3}, "minimum (4) is greater than maximum (3)"),
    (False, "anyOf is empty"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_what_cannot_be_enforced_is_refused_by_keyword_and_path(smollm2: Vocabulary, schema: Any, message: str) -> None:
    with pytest.raises(ConstraintRefusedError) as refusal:
        compiled(smollm2, "json", json.dumps(schema))
    assert message in str(refusal.value)
    assert len(str(refusal.value)) < 500


def test_the_path_of_a_keyword_is_found_among_any_number_of_properties(smollm2: Vocabulary) -> None:
    properties: dict[str, Any] = {f"p{number}": {"type": "string"} for number in range(500)}
    properties["last"] = {"type": "array", "uniqueItems": True}
    with pytest.raises(ConstraintRefusedError, match="'uniqueItems' at /properties/last/uniqueItems"):
        compiled(smollm2, "json", json.dumps({"type": "object", "properties": properties}))


def test_an_object_may_have_a_thousand_properties_and_too_many_are_refused_before_the_output(
    smollm2: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(1000)}}
    grammar = compiled(smollm2, "json", json.dumps(schema))
    assert accepts(grammar, smollm2, '{"p0": 1, "p500": 2, "p999": 3}')
    limits = LLParserLimits(max_items_in_row=2000, verbose_errors=False)
    monkeypatch.setattr(compiler, "_LIMITS", limits)
    with pytest.raises(ConstraintRefusedError, match="max is 2000"):
        compiled(smollm2, "json", json.dumps(schema))


def test_overlapping_alternatives_of_one_of_are_taken_as_any_of(smollm2: Vocabulary) -> None:
    schema = {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}, {"type": "null"}]}
    grammar = compiled(smollm2, "json", json.dumps(schema))
    assert accepts(grammar, smollm2, '"abcdef"') and accepts(grammar, smollm2, "null")
    assert not accepts(grammar, smollm2, "1")


def test_a_schema_cannot_switch_the_enforcement_off(smollm2: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}, "x-guidance": {"lenient": True}}
    with pytest.raises(ConstraintRefusedError, match="'not'"):
        compiled(smollm2, "json", json.dumps(schema))


def test_without_a_schema_any_object_will_do_and_nothing_else(smollm2: Vocabulary) -> None:
    grammar = compiled(smollm2, "json")
    assert accepts(grammar, smollm2, '{"a": [1, {"b": null}], "c": "é\\n"}') and accepts(grammar, smollm2, "{}")
    assert not accepts(grammar, smollm2, "[]") and not accepts(grammar, smollm2, "12")


def test_a_nest_of_overlapping_one_ofs_that_explodes_is_refused(smollm2: Vocabulary) -> None:
    def nest(depth: int) -> dict[str, Any]:
        if not depth:
            return {"type": "string"}
        return {"type": "object", "oneOf": [{"properties": {name: nest(depth - 1)}} for name in "ab"]}

    with pytest.raises(ConstraintRefusedError, match="schema too large"):
        compiled(smollm2, "json", json.dumps(nest(11)))


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"items":' * 5000 + "{}" + "}" * 5000])
def test_what_is_no_schema_is_refused(smollm2: Vocabulary, text: str) -> None:
    with pytest.raises(ConstraintRefusedError):
        compiled(smollm2, "json", text)
