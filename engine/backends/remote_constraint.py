"""Constraints in the words of remote engines: plain fields where one says it all, else a structural tag.

A structural tag is a tree of formats that both vLLM and SGLang hand to xgrammar. It is needed where the constraint does
not bind the output from its first token on: behind the reasoning, or from the marker on that opens a block of calls.
The engines must not look for reasoning themselves, that is, run without `--reasoning-parser`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.backend import ConstraintRefusedError
from recipe.request import OutputConstraint

Format = dict[str, Any]
_ANY_OBJECT = {"type": "object"}
_SPECIAL = frozenset(r"\.^$*+?()[]{}|/-")


@dataclass(frozen=True, slots=True)
class CallTags:
    """How a markup writes a block of calls. `{name}` is that of the tool, `style` how its arguments are written."""

    block_begin: str
    call_begin: str
    call_end: str
    block_end: str
    trigger: str
    lead: str = ""
    separator: str = ""
    style: str = "json"
    ends_turn: bool = False


CALL_TAGS = {
    "deepseek-v4": CallTags(
        "<｜DSML｜tool_calls>\n",
        '<｜DSML｜invoke name="{name}">\n',
        "</｜DSML｜invoke>\n",
        "</｜DSML｜tool_calls>",
        "<｜DSML｜tool_calls>",
        lead="\n\n",
        style="deepseek_xml",
        ends_turn=True,
    ),
    "deepseek-v4.1": CallTags(
        "<｜DSML｜ calls>\n",
        '<｜DSML｜ invoke name="{name}">\n',
        "</｜DSML｜ invoke>\n",
        "</｜DSML｜ calls>",
        "<｜DSML｜ calls>",
        lead="\n\n",
        style="deepseek_v4_1_xml",
        ends_turn=True,
    ),
    "hermes": CallTags(
        "",
        '<tool_call>\n{"name": "{name}", "arguments": ',
        "}\n</tool_call>",
        "",
        "<tool_call>",
        separator="\n",
    ),
}
"""The markups whose calls can be written as structural tags."""


def structured_output(constraint: OutputConstraint) -> tuple[str, Any]:
    """The name and the value of the field that enforces `constraint`; names are those of vLLM.

    A name is `json`, `regex`, `choice`, `grammar` or `structural_tag`. Raises `ConstraintRefusedError`.
    """
    if constraint.kind in _PLAIN and not constraint.begins_after:
        return constraint.kind, _PLAIN[constraint.kind](constraint)
    if constraint.kind in _PLAIN:
        return "structural_tag", _structural_tag(constraint, _bound_format(constraint))
    if constraint.kind in ("tool_call", "tool_call_required"):
        return "structural_tag", _structural_tag(constraint, _calls_format(constraint))
    raise ConstraintRefusedError(f"there is no constraint of the kind {constraint.kind!r:.40}")


def _schema(constraint: OutputConstraint) -> Any:
    return _parsed(constraint) if constraint.schema else _ANY_OBJECT


def _choices(constraint: OutputConstraint) -> list[str]:
    choices = _parsed(constraint)
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise ConstraintRefusedError("choice must hold strings, at least one")
    return choices


def _text(constraint: OutputConstraint) -> str:
    return constraint.schema


_PLAIN: dict[str, Callable[[OutputConstraint], Any]] = {
    "json": _schema,
    "regex": _text,
    "choice": _choices,
    "grammar": _text,
}


def _bound_format(constraint: OutputConstraint) -> Format:
    """What output behind its reasoning is bound to."""
    match constraint.kind:
        case "json":
            return {"type": "json_schema", "json_schema": _schema(constraint)}
        case "regex":
            return {"type": "regex", "pattern": constraint.schema}
        case "choice":
            return {"type": "or", "elements": [_string(choice) for choice in _choices(constraint)]}
    return {"type": "grammar", "grammar": ebnf(constraint.schema)}


def _calls_format(constraint: OutputConstraint) -> Format:
    tags = CALL_TAGS.get(constraint.tool_markup)
    if tags is None:
        raise ConstraintRefusedError(
            f"tool calls in the markup {constraint.tool_markup!r:.40} cannot be enforced by a remote engine; "
            f"those of {', '.join(CALL_TAGS)} can"
        )
    calls = [_call(tags, tool) for tool in _tools(constraint)]
    describe = _required_calls if constraint.kind == "tool_call_required" else _optional_calls
    return describe(tags, calls, constraint)


def _required_calls(tags: CallTags, calls: list[Format], constraint: OutputConstraint) -> Format:
    opening = [] if constraint.in_tool_block else [tags.lead + tags.block_begin]
    texts = [_string(text) for text in opening if text], [_string(text) for text in (tags.block_end,) if text]
    return {"type": "sequence", "elements": [*texts[0], _some_calls(tags, calls, constraint), *texts[1]]}


def _optional_calls(tags: CallTags, calls: list[Format], constraint: OutputConstraint) -> Format:
    """Free text, until the trigger opens a block; where calls stand alone, each is a block."""
    blocks = calls
    if tags.block_begin:
        content = _some_calls(tags, calls, constraint)
        blocks = [{"type": "tag", "begin": tags.block_begin, "content": content, "end": tags.block_end}]
    is_last = tags.ends_turn or constraint.single_call
    return {"type": "triggered_tags", "triggers": [tags.trigger], "tags": blocks, "stop_after_first": is_last}


def _some_calls(tags: CallTags, calls: list[Format], constraint: OutputConstraint) -> Format:
    return {
        "type": "tags_with_separator",
        "tags": calls,
        "separator": tags.separator,
        "at_least_one": True,
        "stop_after_first": constraint.single_call,
    }


def _call(tags: CallTags, function: Any) -> Format:
    parameters = function.get("parameters")
    schema = {"type": "object", **(parameters if isinstance(parameters, dict) else {})}
    return {
        "type": "tag",
        "begin": tags.call_begin.replace("{name}", function["name"]),
        "content": {"type": "json_schema", "json_schema": schema, "style": tags.style},
        "end": tags.call_end,
    }


def _tools(constraint: OutputConstraint) -> list[Any]:
    try:
        functions = [tool["function"] for tool in _parsed(constraint)]
        names = [function["name"] for function in functions]
    except (TypeError, KeyError) as error:
        raise ConstraintRefusedError(f"the tools cannot be read: {error!r}") from None
    if not names:
        raise ConstraintRefusedError("there is no tool to call")
    return functions


def _structural_tag(constraint: OutputConstraint, bound: Format) -> dict[str, Any]:
    """The tag of output that `bound` describes, behind the reasoning if there is any."""
    if not constraint.begins_after or constraint.kind == "tool_call":
        return {"type": "structural_tag", "format": bound}
    begin = constraint.reasoning_start
    reasoning = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": constraint.begins_after}
    gap = {"type": "optional", "content": {"type": "regex", "pattern": r"\n{1,2}"}}
    needs_gap = constraint.kind != "tool_call_required"
    whole = {"type": "sequence", "elements": [reasoning, *([gap] if needs_gap else []), bound]}
    return {"type": "structural_tag", "format": {"type": "or", "elements": [whole, bound]} if begin else whole}


def ebnf(grammar: str) -> str:
    """`grammar`, where an engine takes EBNF alone. Raises `ConstraintRefusedError` if it must be in another syntax."""
    if "::=" not in grammar:
        raise ConstraintRefusedError(
            "grammar must be EBNF here (root ::= ...): the remote engine takes no other syntax"
        )
    return grammar


def alternatives_regex(choices: list[str]) -> str:
    """A regular expression of exactly these texts."""
    return "(" + "|".join("".join(f"\\{c}" if c in _SPECIAL else c for c in text) for text in choices) + ")"


def _string(text: str) -> Format:
    return {"type": "const_string", "value": text}


def _parsed(constraint: OutputConstraint) -> Any:
    try:
        return json.loads(constraint.schema)
    except ValueError as error:
        raise ConstraintRefusedError(f"the constraint {constraint.kind!r} is no JSON: {error}") from None
