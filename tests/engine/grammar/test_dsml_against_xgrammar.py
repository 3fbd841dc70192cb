"""The grammars of DSML blocks beside those of xgrammar, an extra of its own: both take and refuse the same texts.

xgrammar sees letters, ours tokens. So texts are left out whose strings, as letters have it, go on past a damaged
closing tag to the next sound one: there the token inside ends ours. It also takes any run of blank lines in a call
without parameters, and only the opening that the template writes, where ours takes fewer newlines, too.
"""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest

from engine.grammar.compiled_grammar import CompiledGrammar
from engine.grammar.vocabulary import Vocabulary
from tests.engine.grammar.following import EOS, compiled, tokens_of
from tests.engine.grammar.test_tool_grammars import DSML, TOOLS, written

xgrammar = pytest.importorskip("xgrammar", reason="the differential test needs the oracle extra (xgrammar)")

STRING = re.compile(r'string="true">(.*?)</｜DSML｜ ?parameter>\n', re.DOTALL)
MODELS = {"deepseek-v4": "deepseek_v4", "deepseek-v4.1": "deepseek_v4_1"}
CLOSED = json.loads(TOOLS)
CLOSED[0]["function"]["parameters"] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "ok": {"type": "boolean"},
    },
    "required": ["city", "ok"],
    "additionalProperties": False,
}
CLOSED[1]["function"]["parameters"] = {"type": "object", "properties": {}, "additionalProperties": False}
VALUES: dict[str, list[Any]] = {
    "city": ["Paris", "", 'a "b" <c> </d>\n', "Köln", 3, None],
    "days": [3, -1, "3", 1.5],
    "unit": ["celsius", "kelvin", 1],
    "tags": [[], ["a", "b c"], [1], "a"],
    "ok": [True, False, "true", None],
}


def random_calls(random: Random) -> list[tuple[str, dict[str, Any]]]:
    calls: list[tuple[str, dict[str, Any]]] = []
    for _ in range(random.randint(1, 3)):
        if random.random() < 0.2:
            calls.append((random.choice(["now", "later"]), {}))
            continue
        names = [name for name in VALUES if name == "city" or random.random() < 0.6]
        values = {name: VALUES[name][0] if random.random() < 0.9 else random.choice(VALUES[name]) for name in names}
        if random.random() < 0.1:
            values = dict(reversed(values.items()))
        calls.append(("get_weather", values))
    return calls


def damaged(text: str, random: Random) -> str:
    """`text` with a line lost, doubled, or a piece of it cut out; often as it was."""
    lines = text.split("\n")
    place = random.randrange(len(lines))
    match random.randrange(9):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, lines[place])
        case 2:
            start = random.randrange(len(text))
            return text[:start] + text[start + random.randint(1, 4) :]
    return "\n".join(lines)


def ours(grammar: CompiledGrammar, vocabulary: Vocabulary, text: str) -> bool:
    matcher = grammar.new_matcher(frozenset([EOS]))
    return all(map(matcher.accept_token, tokens_of(vocabulary, text, DSML))) and matcher.is_terminated()


def is_comparable(text: str) -> bool:
    swallows_a_tag = any(DSML in string for string in STRING.findall(text))
    return text.startswith("\n\n<") and "\n\n\n" not in text and not swallows_a_tag


@pytest.mark.parametrize("markup", MODELS)
def test_blocks_that_one_takes_the_other_takes(deepseek: Vocabulary, markup: str) -> None:
    grammar = compiled(deepseek, "tool_call_required", json.dumps(CLOSED), tool_markup=markup)
    tag = xgrammar.get_model_structural_tag(
        MODELS[markup], tools=CLOSED, tool_choice="required", reasoning="disabled", exclude_special_tokens=False
    )
    theirs = xgrammar.Grammar.from_structural_tag(tag)
    random = Random(7)
    accepted = refused = 0
    for _ in range(400):
        text = damaged(written(markup, random_calls(random)), random)
        if not is_comparable(text):
            continue
        expected = xgrammar.testing._is_grammar_accept_string(theirs, text)
        assert ours(grammar, deepseek, text) is expected, text
        accepted, refused = accepted + expected, refused + (not expected)
    assert accepted > 50 and refused > 50
