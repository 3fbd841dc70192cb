"""Strict schemas come out in one normal form, or with the reference's words for what is wrong."""

import random
from typing import Any

import deepseek_recipe
import pytest

from recipe.errors import ConversionError
from recipe.protocol.json_text import compact_json
from recipe.protocol.strict_schema import strict_parameters, strict_response_schema

SHAPE = "Invalid tool parameters schema : "


def in_object(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


@pytest.mark.parametrize(
    ("schema", "normal"),
    [
        (
            {"description": "d", "minLength": 1, "enum": ["x"], "type": "string"},
            {"type": "string", "description": "d", "enum": ["x"]},
        ),
        ({"type": "integer", "maximum": 4, "minimum": 3, "x": 1}, {"type": "integer", "minimum": 3, "maximum": 4}),
        ({"type": "number", "default": 1, "const": None}, {"type": "number", "default": 1}),
        ({"$ref": "#/$defs/A", "description": "d"}, {"$ref": "#/$defs/A"}),
        ({"anyOf": [{"type": "null"}], "description": "d", "x": 1}, {"anyOf": [{"type": "null"}], "description": "d"}),
        ({"type": ["string", "null"], "enum": ["a"]}, {"type": ["string", "null"]}),
        ({"items": {"type": "null"}, "minItems": 1, "type": "array"}, {"type": "array", "items": {"type": "null"}}),
    ],
)
def test_known_keywords_survive_in_canonical_order(schema: Any, normal: Any) -> None:
    assert compact_json(strict_parameters(in_object(schema))["properties"]["a"]) == compact_json(normal)


def test_objects_are_closed_with_all_properties_required_in_their_order() -> None:
    schema = {"properties": {"b": {"type": "null"}, "a": {"type": "null"}}, "type": "object", "required": ["a", "b"]}
    assert compact_json(strict_parameters(schema)) == (
        '{"type":"object","properties":{"b":{"type":"null"},"a":{"type":"null"}},'
        '"additionalProperties":false,"required":["b","a"]}'
    )


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (True, SHAPE + "one of `type`, `anyOf`, `$ref` field is required"),
        ({"enum": ["a"]}, SHAPE + "one of `type`, `anyOf`, `$ref` field is required"),
        ({"type": "array"}, SHAPE + "missing field `items`"),
        ({"type": "integer", "minimum": 1.5}, SHAPE + "invalid type: floating point `1.5`, expected i64"),
        (
            {"type": "integer", "minimum": 2**63},
            SHAPE + "invalid value: integer `9223372036854775808`, expected i64",
        ),
        (
            {"type": "string", "description": 1e22},
            SHAPE + "invalid type: floating point `1e+22`, expected a string",
        ),
        ({"anyOf": [{}]}, SHAPE + "field `anyOf`: missing field `type`"),
        ({"$ref": 5}, SHAPE + "field `$ref`: invalid type: integer `5`, expected a string"),
        ({"type": "object"}, "An object with no properties is not allowed."),
        (in_object({"type": "null"}) | {"additionalProperties": True}, "additionalProperties should not be true"),
        (in_object({"type": "null"}) | {"required": ["z"]}, "Required property 'z' not found in object"),
        (in_object({"type": "null"}) | {"required": ["a", "a"]}, "Duplicate required property 'a'"),
        (in_object({"type": "null"}) | {"required": []}, "Required properties must match all properties in the object"),
    ],
)
def test_a_schema_outside_the_subset_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(ConversionError) as caught:
        strict_parameters(in_object(schema))
    assert str(caught.value) == problem


def test_the_top_level_is_an_object_which_only_for_tools_may_be_empty() -> None:
    assert strict_parameters({"type": "object"})["properties"] == {}
    with pytest.raises(ConversionError, match="An object with no properties is not allowed"):
        strict_response_schema({"type": "object"})
    with pytest.raises(ConversionError, match="The top level of the function parameters schema must be an object"):
        strict_parameters({"type": "string"})
    with pytest.raises(ConversionError, match="The top level of the json schema must be an object"):
        strict_response_schema({"type": "string"})


VALUES = (None, True, 0, 1.5, 1e22, 2**63, "", "string", "email", 'a\n`"', [], {}, ["a"], [1])
KEYWORDS = ("type", "properties", "items", "anyOf", "$ref", "required", "additionalProperties", "description")
KEYWORDS += ("enum", "const", "minimum", "multipleOf", "pattern", "format", "title")
TYPES = ("object", "object", "string", "number", "integer", "boolean", "array", "null")


def random_schema(rng: random.Random, levels: int) -> Any:
    if rng.random() < 0.05:
        return rng.choice(VALUES)
    schema: dict[str, Any] = {"type": rng.choice(TYPES)}
    if levels and schema["type"] == "object":
        schema["properties"] = {name: random_schema(rng, levels - 1) for name in rng.sample("abc", rng.randrange(3))}
    if levels and schema["type"] == "array":
        schema["items"] = random_schema(rng, levels - 1)
    for _ in range(rng.choice((0, 0, 1, 2))):
        schema[rng.choice(KEYWORDS)] = rng.choice(VALUES)
    return schema


def test_random_schemas_have_the_outcome_of_the_reference() -> None:
    rng = random.Random(3)
    for _ in range(1500):
        schema = random_schema(rng, 2)
        assert ours(schema) == theirs(schema), schema


def ours(schema: Any) -> str:
    try:
        return compact_json(strict_parameters(schema))
    except ConversionError as error:
        return str(error)


def theirs(schema: Any) -> str:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    body = {"model": "DeepSeek-V4-Pro", "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    try:
        request = deepseek_recipe.ChatCompletionRequest(body).convert(deepseek_recipe.ConversionOptions())
    except deepseek_recipe.ConversionError as error:
        return str(error)
    constraint = request.inference_options.output_constraint
    assert constraint is not None
    return constraint.schema.removeprefix(
        '[{"type":"function","function":{"name":"f","description":null,"parameters":'
    ).removesuffix(',"strict":true}}]')
