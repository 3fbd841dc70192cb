"""One sequence's way through its grammar: where it may end, what passes a gate, what rollback takes back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from llguidance import LLParserLimits

from engine.grammar import compiler
from engine.grammar import matcher as matcher_module
from engine.grammar.gate import Gate, Opening
from engine.grammar.vocabulary import Vocabulary
from tests.engine.grammar.following import EOS, accepts, compiled, follow, mask_of, may_end, tokens_of

STOPS = frozenset([EOS])
NUMBER = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}'
THINKING_END = "</think>"


def test_the_output_cannot_end_inside_a_number_that_is_not_all(deepseek: Vocabulary) -> None:
    matcher = compiled(deepseek, "json", NUMBER).new_matcher(STOPS)
    for token in tokens_of(deepseek, '{"n": 12}'):
        assert not may_end(matcher)
        assert matcher.accept_token(token)
    assert may_end(matcher)


def test_a_number_alone_may_end_or_go_on_but_not_end_in_its_fraction(deepseek: Vocabulary) -> None:
    matcher = compiled(deepseek, "json", '{"type":"number"}').new_matcher(STOPS)
    follow(matcher, tokens_of(deepseek, "12"))
    assert may_end(matcher) and not matcher.is_terminated()
    follow(matcher, tokens_of(deepseek, "."))
    assert not may_end(matcher)


def test_every_stop_token_waits_for_the_end_and_then_nothing_else_is_allowed(deepseek: Vocabulary) -> None:
    (comma,) = tokens_of(deepseek, ",")
    stops = frozenset([EOS, comma])
    matcher = compiled(deepseek, "json", '{"type":"array","items":{"type":"integer"}}').new_matcher(stops)
    follow(matcher, tokens_of(deepseek, "[1"))
    assert not mask_of(matcher)[[EOS, comma]].any(), "a comma would end the output here"
    follow(matcher, tokens_of(deepseek, "]"))
    assert matcher.is_terminated()
    assert set(np.flatnonzero(mask_of(matcher))) == stops


def test_the_models_own_end_is_not_allowed_where_a_request_ignores_it(deepseek: Vocabulary) -> None:
    matcher = compiled(deepseek, "json", '{"type":"integer"}').new_matcher(frozenset())
    follow(matcher, tokens_of(deepseek, "1"))
    assert not may_end(matcher)


@pytest.mark.parametrize("indent", [None, 1, 2, 4])
def test_json_may_be_printed_in_any_usual_way(deepseek: Vocabulary, indent: int | None) -> None:
    text = json.dumps({"n": 1, "list": [1, {"deep": [[]]}]}, indent=indent)
    assert accepts(compiled(deepseek, "json"), tokens_of(deepseek, text))


@pytest.mark.parametrize("place", ['{"a": 1', "{", '{"a":', '{"a": [1, ', "["])
def test_whitespace_is_bounded_wherever_it_may_stand(deepseek: Vocabulary, place: str) -> None:
    matcher = compiled(deepseek, "json", '{"type":["object","array"]}').new_matcher(STOPS)
    assert follow(matcher, tokens_of(deepseek, place)) > 0
    blanks = [token for text in (" ", "\n", "\t", "  ", "    ") for token in tokens_of(deepseek, text)]
    for count in range(40):
        allowed = [token for token in blanks if mask_of(matcher)[token]]
        if not allowed:
            break
        matcher.accept_token(allowed[count % len(allowed)])
    assert count < 30
    assert mask_of(matcher).any()


def test_a_token_that_is_refused_changes_nothing(deepseek: Vocabulary) -> None:
    matcher = compiled(deepseek, "regex", "[a-z]{3}").new_matcher(STOPS)
    (digit,) = tokens_of(deepseek, "7")
    assert not matcher.accept_token(digit)
    assert follow(matcher, tokens_of(deepseek, "abc")) and matcher.is_terminated()


def test_rollback_takes_tokens_back_also_past_the_end_and_past_a_gate(deepseek: Vocabulary) -> None:
    grammar = compiled(deepseek, "json", NUMBER, begins_after=THINKING_END)
    tokens = tokens_of(deepseek, 'so</think>{"n": 12}', THINKING_END)
    matcher = grammar.new_matcher(STOPS)
    assert follow(matcher, tokens) == len(tokens)
    for back in range(len(tokens) + 1):
        matcher.rollback(back)
        assert matcher.is_terminated() is (back == 0)
        rest = tokens[len(tokens) - back :]
        assert follow(matcher, rest) == len(rest) and matcher.is_terminated()
    with pytest.raises(ValueError, match="num_tokens"):
        matcher.rollback(len(tokens) + 1)


def test_a_constraint_holds_from_the_token_that_ends_the_reasoning_and_not_from_its_letters(
    deepseek: Vocabulary,
) -> None:
    matcher = compiled(deepseek, "json", NUMBER, begins_after=THINKING_END).new_matcher(STOPS)
    follow(matcher, tokens_of(deepseek, "I write </think> in letters, free as a bird."))
    assert mask_of(matcher).sum() == len(mask_of(matcher)) - 1, "everything but the end"
    follow(matcher, tokens_of(deepseek, "</think>", THINKING_END))
    tokens = tokens_of(deepseek, "bird")
    assert follow(matcher, tokens) == 0
    assert follow(matcher, tokens_of(deepseek, '\n\n{"n": 1}')) and matcher.is_terminated()


def test_a_reasoning_model_that_does_not_reason_is_bound_at_once(deepseek: Vocabulary) -> None:
    matcher = compiled(deepseek, "json", NUMBER, begins_after="").new_matcher(STOPS)
    assert follow(matcher, tokens_of(deepseek, "Well")) == 0
    assert follow(matcher, tokens_of(deepseek, '{"n": 1}')) and matcher.is_terminated()


def test_a_model_that_may_open_its_reasoning_itself_is_bound_at_once_when_it_does_not(deepseek: Vocabulary) -> None:
    fields = {"begins_after": THINKING_END, "reasoning_start": "<think>"}
    grammar = compiled(deepseek, "json", NUMBER, **fields)
    start = deepseek.marker_id("<think>")
    first, straight, late = (grammar.new_matcher(STOPS) for _ in range(3))
    reasoned = tokens_of(deepseek, '<think>hm, "1"?</think>{"n": 1}', "<think>", THINKING_END)
    assert mask_of(first)[start] and follow(first, reasoned) == len(reasoned) and first.is_terminated()
    first.rollback(len(reasoned))
    assert follow(first, reasoned) == len(reasoned) and first.is_terminated()
    assert follow(straight, tokens_of(deepseek, "Well")) == 0
    assert follow(straight, tokens_of(deepseek, '{"n": 1}')) and straight.is_terminated()
    follow(late, tokens_of(deepseek, "{"))
    assert not mask_of(late)[start]


def test_a_call_may_follow_reasoning_that_the_model_opens_itself_or_come_at_once(deepseek: Vocabulary) -> None:
    tools = '[{"type":"function","function":{"name":"f","parameters":{}}}]'
    grammar = compiled(
        deepseek, "tool_call", tools, tool_markup="hermes", begins_after=THINKING_END, reasoning_start="<think>"
    )
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for output, is_bound in ((call, True), (f"<think>{call}", False), (f"<think>so</think>{call}", True)):
        matcher = grammar.new_matcher(STOPS)
        tokens = tokens_of(deepseek, output, "<think>", THINKING_END)
        assert follow(matcher, tokens) == len(tokens)
        assert (matcher.bound is not None) is is_bound, output


def test_a_marker_without_a_token_is_found_in_text_however_tokens_cut_it(smollm2: Vocabulary) -> None:
    grammar = compiled(smollm2, "regex", "[0-9]+!", begins_after="</think>")
    for reasoning in ("a</think>12!", "</think>12!", "</thin</think>12!"):
        for cut in range(1, len(reasoning) - 3):
            tokens = tokens_of(smollm2, reasoning[:cut]) + tokens_of(smollm2, reasoning[cut:])
            matcher = grammar.new_matcher(STOPS)
            assert follow(matcher, tokens) == len(tokens) and matcher.is_terminated(), (reasoning, cut)


def test_markers_are_out_of_reach_of_text(deepseek: Vocabulary) -> None:
    matcher = compiled(deepseek, "json").new_matcher(STOPS)
    follow(matcher, tokens_of(deepseek, '{"a": "'))
    mask = mask_of(matcher)
    for marker in (THINKING_END, "｜DSML｜", "<｜tool▁calls▁begin｜>"):
        token = deepseek.marker_id(marker)
        assert token is not None and not mask[token]
    assert follow(matcher, tokens_of(deepseek, '</think>"}')), "their letters are text"
    assert matcher.is_terminated()


def test_no_token_past_the_vocabulary_is_ever_allowed_by_a_grammar(smollm2_files: object) -> None:
    files = smollm2_files
    padded = Vocabulary(files.tokenizer_json, 49_252, files.eos_token_ids)  # type: ignore[attr-defined]
    matcher = compiled(padded, "regex", "(?s:.*)").new_matcher(frozenset([2]))
    assert mask_of(matcher)[:49152].sum() > 49_000
    assert not mask_of(matcher)[49152:].any()


@pytest.mark.parametrize(
    ("kind", "schema", "good", "bad"),
    [
        ("regex", r"^\d{4}-\d\d$", ["2026-11"], ["2026", "x2026-11", "2026-111"]),
        ("regex", "yes|no", ["yes", "no"], ["yess", "maybe"]),
        ("regex", "", [""], ["a"]),
        ("choice", '["red","reddish","a \\"b\\""]', ["red", "reddish", 'a "b"'], ["re", "reddi"]),
        ("grammar", 'start: "a" b?\nb: /[0-9]+/', ["a", "a12"], ["b", "a b"]),
        ("grammar", 'root ::= "x" y*\ny ::= [0-9]', ["x", "x42"], ["y"]),
    ],
)
def test_patterns_choices_and_grammars_accept_what_they_say(
    deepseek: Vocabulary, kind: str, schema: str, good: list[str], bad: list[str]
) -> None:
    grammar = compiled(deepseek, kind, schema)
    assert [text for text in good if not accepts(grammar, tokens_of(deepseek, text))] == []
    assert [text for text in bad if accepts(grammar, tokens_of(deepseek, text))] == []


@pytest.mark.parametrize(
    ("kind", "schema", "least"),
    [
        ("json", '{"enum":[{"kind":"a long word that many tokens spell","n":1},{"kind":"another"}]}', 2),
        ("json", NUMBER, 2),
        ("regex", "(abcdefgh|xyz)-(one|two|three)[0-9]{2}", 1),
        ("choice", '["Copenhagen","Copernicus"]', 1),
    ],
)
def test_what_is_forced_is_what_the_masks_alone_allow(deepseek: Vocabulary, kind: str, schema: str, least: int) -> None:
    matcher, twin = (compiled(deepseek, kind, schema).new_matcher(STOPS) for _ in range(2))
    num_forced = num_tokens = 0
    for limit in range(1, 40):
        forced = matcher.accept_forced(limit)
        assert len(forced) <= limit
        for token in forced:
            assert np.flatnonzero(mask_of(twin)).tolist() == [token]
            assert twin.accept_token(token)
        num_forced, num_tokens = num_forced + len(forced), num_tokens + len(forced)
        assert matcher.is_terminated() is twin.is_terminated()
        if matcher.is_terminated():
            break
        allowed = np.flatnonzero(mask_of(matcher)).tolist()
        assert allowed == np.flatnonzero(mask_of(twin)).tolist() and (len(allowed) > 1 or len(forced) == limit)
        assert matcher.accept_token(allowed[-1]) and twin.accept_token(allowed[-1])
        num_tokens += 1
    assert matcher.is_terminated() and num_forced >= least
    for each in (matcher, twin):
        each.rollback(num_tokens)
    assert (mask_of(matcher) == mask_of(twin)).all(), "rollback takes forced tokens back like all others"


def test_free_output_forces_nothing_and_a_marker_forces_what_follows_it(deepseek: Vocabulary) -> None:
    matcher = compiled(deepseek, "choice", '["one way"]', begins_after=THINKING_END).new_matcher(STOPS)
    assert follow(matcher, tokens_of(deepseek, "so")) and matcher.accept_forced(9) == []
    follow(matcher, tokens_of(deepseek, THINKING_END, THINKING_END))
    follow(matcher, tokens_of(deepseek, "\n\n"))
    assert matcher.accept_forced(9) == tokens_of(deepseek, "one way") and matcher.is_terminated()


def test_a_forced_token_that_would_end_the_output_is_left_to_the_mask(deepseek: Vocabulary) -> None:
    grammar = compiled(deepseek, "choice", '["one, two, three"]')
    (comma,) = tokens_of(deepseek, ",")
    free, stopped = grammar.new_matcher(STOPS), grammar.new_matcher(frozenset([EOS, comma]))
    whole = tokens_of(deepseek, "one, two, three")
    assert [free.accept_forced(limit) for limit in (2, 20)] == [whole[:2], whole[2:]] and free.is_terminated()
    assert stopped.accept_forced(20) == tokens_of(deepseek, "one") and not mask_of(stopped).any()
    assert stopped.accept_forced(0) == [] and stopped.accept_forced(5) == []


def test_fewer_forced_tokens_than_asked_for_are_left_to_the_draw(deepseek: Vocabulary) -> None:
    matcher = compiled(deepseek, "choice", '["one, two, three"]').new_matcher(STOPS)
    whole = tokens_of(deepseek, "one, two, three")
    assert matcher.accept_forced(20, len(whole) + 1) == [] == matcher.accept_forced(len(whole) - 1, len(whole))
    assert matcher.accept_token(whole[0]) and matcher.accept_forced(20, len(whole) - 1) == whole[1:]


def test_a_grammar_that_runs_into_a_limit_says_so_and_allows_nothing_more(
    smollm2: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = LLParserLimits(max_items_in_row=40, verbose_errors=False)
    monkeypatch.setattr(compiler, "_LIMITS", limits)
    grammar = compiled(smollm2, "grammar", 'start: a\na: "x" a | "x"')
    matcher = grammar.new_matcher(STOPS)
    (letter,) = tokens_of(smollm2, "x")
    assert matcher.failure() == ""
    assert sum(matcher.accept_token(letter) for _ in range(40)) < 40
    assert "max is 40" in matcher.failure() and "\n" not in matcher.failure() and "<" not in matcher.failure()
    assert not mask_of(matcher).any() and not matcher.is_terminated() and grammar.has_failed


def test_a_grammar_that_takes_too_long_for_a_token_ends_there(
    deepseek: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher = compiled(deepseek, "json").new_matcher(STOPS)
    assert follow(matcher, tokens_of(deepseek, '{"a')) and not matcher.failure()
    monkeypatch.setattr(matcher_module, "_MAX_TOKEN_S", -1.0)
    assert matcher.accept_token(tokens_of(deepseek, "b")[0])
    assert "ms to follow" in matcher.failure() and not mask_of(matcher).any()


def test_an_opening_at_the_start_is_none_later_on(smollm2: Vocabulary) -> None:
    opening = Opening(b'{"name"', at_start=True)
    gate = Gate((opening,), may_end=True, replays=True)
    assert opening.rest(b' {"name": 1', 0, is_all=True) == b": 1"
    assert opening.rest(b'a {"name"', 0, is_all=True) is None
    assert opening.rest(b'{"name"', 0, is_all=False) is None
    assert gate.openings == (opening,)
