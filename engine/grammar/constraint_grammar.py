"""What a constraint means: the text of its grammar, and the gates that output passes before the grammar binds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

from engine.backend import ConstraintRefusedError
from engine.grammar.gate import Gate, Opening
from engine.grammar.json_rules import ErrorOf
from engine.grammar.tool_grammar.markups import ToolMarkup, markup_of
from engine.grammar.tool_grammar.tool_block import Tool, ToolBlock
from engine.grammar.vocabulary import Vocabulary, literal
from engine.grammar.writer import GrammarWriter
from recipe.request import OutputConstraint

_ANY_OBJECT = {"type": "object"}
_GAP = r"/\n{1,2}/"  # what models write between their reasoning and the answer


@dataclass(frozen=True, slots=True)
class ConstraintGrammar:
    """`lark` binds the output behind all `gates`."""

    lark: str
    gates: tuple[Gate, ...]


def constraint_grammar(
    constraint: OutputConstraint, vocabulary: Vocabulary, error_of: ErrorOf | None = None
) -> ConstraintGrammar:
    """The grammar of `constraint`. Raises `ConstraintRefusedError`.

    Without `error_of` everything is taken at its word. If that does not compile, `error_of` helps to tell what of it
    can be enforced: it compiles a grammar and says what is wrong.
    """
    describe = _KINDS.get(constraint.kind)
    if describe is None:
        raise ConstraintRefusedError(f"there is no constraint of the kind {constraint.kind!r:.40}")
    return describe(constraint, GrammarWriter(vocabulary, error_of))


def _json(constraint: OutputConstraint, writer: GrammarWriter) -> ConstraintGrammar:
    schema = _parsed(constraint) if constraint.schema else _ANY_OBJECT
    value = writer.json(schema, is_promise=True, where="the JSON schema")
    return ConstraintGrammar(writer.grammar(_behind_gap(value, constraint, writer)), _reasoning(constraint, writer))


def _regex(constraint: OutputConstraint, writer: GrammarWriter) -> ConstraintGrammar:
    pattern = llguidance.regex_to_lark(constraint.schema, "dw")
    start = f"/{pattern}/" if pattern else '""'
    return ConstraintGrammar(writer.grammar(start), _reasoning(constraint, writer))


def _choice(constraint: OutputConstraint, writer: GrammarWriter) -> ConstraintGrammar:
    choices = _parsed(constraint)
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise ConstraintRefusedError("choice must hold strings, at least one")
    start = " | ".join(literal(choice) for choice in choices)
    return ConstraintGrammar(writer.grammar(start), _reasoning(constraint, writer))


def _grammar(constraint: OutputConstraint, writer: GrammarWriter) -> ConstraintGrammar:
    """A grammar in Lark or in GBNF."""
    try:
        lark = any_to_lark(constraint.schema)
    except Exception as error:  # the converter has no errors of its own
        raise ConstraintRefusedError(f"the grammar cannot be read: {error}") from None
    return ConstraintGrammar(lark, _reasoning(constraint, writer))


def _tools(constraint: OutputConstraint, writer: GrammarWriter) -> ConstraintGrammar:
    """Calls of tools; the output is bound at once, or from the marker on that opens a block."""
    markup = markup_of(constraint.tool_markup)
    block = ToolBlock.of(constraint)
    if writer.error_of is not None:
        tools = [_enforceable(tool, markup, block, writer.vocabulary, writer.error_of) for tool in block.tools]
        block = replace(block, tools=tools)
    start = markup.write(writer, block)
    lark = writer.grammar(start if block.is_open else _gap_or(start, writer))
    reasoning = () if markup.opens_in_reasoning and not block.is_required else _reasoning(constraint, writer)
    if block.is_required:
        return ConstraintGrammar(lark, reasoning)
    opening = Gate(markup.openings(writer.vocabulary), may_end=True, replays=True)
    return ConstraintGrammar(lark, (*reasoning, opening))


def _enforceable(tool: Tool, markup: ToolMarkup, block: ToolBlock, vocabulary: Vocabulary, error_of: ErrorOf) -> Tool:
    """The tool, with any arguments where nobody was promised more and its parameters cannot be enforced at all."""
    if tool.is_promise:
        return tool
    writer = GrammarWriter(vocabulary, error_of)
    try:
        fails = error_of(writer.grammar(markup.write(writer, replace(block, tools=[tool]))))
    except ConstraintRefusedError:
        fails = "refused"
    return replace(tool, parameters={"type": "object"}) if fails else tool


def _parsed(constraint: OutputConstraint) -> Any:
    try:
        return json.loads(constraint.schema)
    except (ValueError, RecursionError) as error:
        raise ConstraintRefusedError(f"the constraint {constraint.kind!r} cannot be read as JSON: {error}") from None


def _reasoning(constraint: OutputConstraint, writer: GrammarWriter) -> tuple[Gate, ...]:
    if not constraint.begins_after:
        return ()
    end = Opening.of(writer.vocabulary, constraint.begins_after)
    entry_id = writer.vocabulary.marker_id(constraint.reasoning_start)
    return (Gate((end,), may_end=constraint.kind == "tool_call", replays=False, entry_id=entry_id),)


def _behind_gap(start: str, constraint: OutputConstraint, writer: GrammarWriter) -> str:
    return _gap_or(start, writer) if constraint.begins_after else start


def _gap_or(start: str, writer: GrammarWriter) -> str:
    return f"{writer.terminal(_GAP)}? {writer.rule(start)}"


_KINDS: dict[str, Callable[[OutputConstraint, GrammarWriter], ConstraintGrammar]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "tool_call": _tools,
    "tool_call_required": _tools,
}
