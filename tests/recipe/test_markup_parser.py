"""Calls and reasoning in the markup of every family mean the same, whole, at every split and a token at a time."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.markup.output_markup import TOOL_MARKERS, OutputMarkup, ReasoningMarkers, ToolMarkup
from recipe.stream.parser import OutputParser
from recipe.stream.parsing_options import ParsingOptions, ThinkingInitialStage
from recipe.stream.segment import ANY, PLAIN, SPECIAL, Segment
from tests.recipe.markup_models import MODELS, TIME, WEATHER, markup_of, tokenizer_of
from tests.recipe.recorded_output import Entry, Recorder, parsed_text, parsed_tokens

THINK = ReasoningMarkers("<think>", "</think>")
START = ThinkingInitialStage.ReasoningStart
OPENED_BY_PROMPT = {"r1"}


def options_of(name: str, *, is_open: bool | None = None, **fields: bool) -> ParsingOptions:
    is_open = name in OPENED_BY_PROMPT if is_open is None else is_open
    stage = START if is_open else None
    return ParsingOptions(
        markup=markup_of(name), thinking_initial_stage=stage, prompt_opens_reasoning=is_open, **fields
    )


def of_text(tools: ToolMarkup, *, reasoning: ReasoningMarkers | None = None, **fields: object) -> ParsingOptions:
    return ParsingOptions(markup=OutputMarkup(tools, reasoning), prompt_opens_reasoning=False, **fields)  # type: ignore[arg-type]


def every_way(text: str, options: ParsingOptions) -> list[Entry]:
    """What a text comes to, the same whole, cut at every place, and a character at a time."""
    whole = parsed_text([text], options)
    assert parsed_text(text, options) == whole
    for cut in range(1, len(text)):
        assert parsed_text([text[:cut], text[cut:]], options) == whole, (text, cut)
    return whole[0]


def every_way_of_tokens(name: str, text: str, options: ParsingOptions) -> list[Entry]:
    """The same of the tokens that spell a text."""
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(text)
    whole = parsed_tokens([ids], options, tokenizer)
    assert parsed_tokens([[token_id] for token_id in ids], options, tokenizer) == whole
    for cut in range(1, len(ids)):
        assert parsed_tokens([ids[:cut], ids[cut:]], options, tokenizer) == whole, (text, cut)
    return whole[0]


def call(name: str, arguments: str) -> list[Entry]:
    return [("call", name), ("arguments", arguments)]


def entries(name: str, *calls: tuple[str, str]) -> list[Entry]:
    model = MODELS[name]
    thought = [("reasoning", "Hm.")] if name in OPENED_BY_PROMPT else []
    said = [("content", model.said)] if model.said else []
    return [*thought, *said, *[entry for each in calls for entry in call(*each)]]


@pytest.mark.parametrize("name", MODELS)
def test_calls_are_read_at_every_split(name: str) -> None:
    model, options = MODELS[name], options_of(name)
    for output, calls in ((model.call, [WEATHER]), (model.two_calls, [WEATHER, TIME])):
        assert every_way(output, options) == entries(name, *calls)
        assert every_way_of_tokens(name, output, options) == entries(name, *calls)


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.reasoning])
def test_reasoning_is_read_at_every_split(name: str) -> None:
    output, options = MODELS[name].reasoning or "", options_of(name)
    assert every_way(output, options) == [("reasoning", "Hm.\nYes."), ("content", "42")]
    assert every_way_of_tokens(name, output, options) == [("reasoning", "Hm.\nYes."), ("content", "42")]


@pytest.mark.parametrize("name", MODELS)
def test_text_streams_and_arguments_stream_as_they_come(name: str) -> None:
    """All but the last token is out before the last one comes in."""
    recorder = Recorder()
    parser = OutputParser(options_of(name), recorder)
    argument = f'{{"city": "{"word " * 40}'
    output = MODELS[name].call.partition(WEATHER[1])[0] + argument
    for character in output:
        parser.feed(Segment(character, ANY, 1))
    assert recorder.coalesced()[-1] == ("arguments", argument)
    assert len([kind for kind, _ in recorder.pieces if kind == "arguments"]) > 100


@pytest.mark.parametrize("name", MODELS)
def test_markup_of_calls_is_text_where_there_are_no_tools(name: str) -> None:
    output = MODELS[name].call.partition("</think>\n\n")[2] or MODELS[name].call
    options = options_of(name, is_open=False, parse_tool_calls=False)
    assert every_way(output, options) == [("content", output)]


@pytest.mark.parametrize("name", MODELS)
def test_one_call_at_most_where_only_one_is_allowed(name: str) -> None:
    options = options_of(name, single_call=True)
    assert every_way(MODELS[name].two_calls, options) == entries(name, WEATHER)


@pytest.mark.parametrize("name", ["qwen", "mistral", "magistral", "r1"])
def test_letters_that_look_like_a_marker_token_are_text(name: str) -> None:
    """Every character is a token of its own here, as nothing in the vocabulary spells them together."""
    output = MODELS[name].call.partition("</think>\n\n")[2] or MODELS[name].call
    recorder = Recorder()
    parser = OutputParser(options_of(name, is_open=False), recorder)
    for character in output:
        parser.feed(Segment(character, PLAIN, 1))
    parser.end()
    assert recorder.coalesced() == [("content", output)]


def test_a_marker_token_within_a_string_ends_the_call_and_its_letters_do_not() -> None:
    options = options_of("qwen")
    head, letters = '<tool_call>{"name": "f", "arguments": {"a": "', "</tool_call>"
    for origin, ending in ((SPECIAL, ""), (PLAIN, letters)):
        recorder = Recorder()
        parser = OutputParser(options, recorder)
        for text, text_origin in ((head[:11], SPECIAL), (head[11:], PLAIN), (letters, origin)):
            parser.feed(Segment(text, text_origin, 1))
        parser.end()
        assert recorder.coalesced() == call("f", '{"a": "' + ending)


def test_another_token_within_a_string_is_a_part_of_it() -> None:
    recorder = Recorder()
    parser = OutputParser(options_of("qwen"), recorder)
    for text, origin in (
        ("<tool_call>", SPECIAL),
        ('{"name": "f", "arguments": {"a": "', PLAIN),
        ("<think>", SPECIAL),
        ('"}}', PLAIN),
        ("</tool_call>", SPECIAL),
    ):
        parser.feed(Segment(text, origin, 1))
    parser.end()
    assert recorder.coalesced() == call("f", '{"a": "<think>"}')


@pytest.mark.parametrize(
    "written",
    [
        '{"arguments": {"a": 1}, "name": "f"}',
        '{"name": "f", "parameters": {"a": 1}}',
        '{"name": "f", "arguments": "{\\"a\\": 1}"}',
        '{"id": "x", "type": "function", "extra": [{}, 1.5, null], "name": "f", "arguments": {"a": 1}}',
    ],
)
def test_keys_come_in_any_order_and_arguments_also_as_a_string(written: str) -> None:
    assert every_way(f"<tool_call>{written}</tool_call>", of_text("hermes")) == call("f", '{"a": 1}')


@pytest.mark.parametrize("arguments", ["", ', "arguments": {}', ', "arguments": null'])
def test_a_call_without_arguments_has_an_empty_object(arguments: str) -> None:
    assert every_way(f'<tool_call>{{"name": "f"{arguments}}}</tool_call>', of_text("hermes")) == call("f", "{}")


@pytest.mark.parametrize(
    "broken",
    [
        "<tool_call>Use it so</tool_call>",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "no name", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "argum',
        "<tool_call>",
    ],
)
def test_what_does_not_become_a_call_is_text_with_its_marker(broken: str) -> None:
    assert every_way(f"a\n{broken}", of_text("hermes")) == [("content", f"a\n{broken}")]


def test_a_call_behind_a_broken_one_is_read() -> None:
    output = '<tool_call>{oops<tool_call><tool_call>{"name": "f"}</tool_call>\nb'
    assert every_way(output, of_text("hermes")) == [
        ("content", "<tool_call>{oops<tool_call>"),
        *call("f", "{}"),
        ("content", "b"),
    ]


def test_damaged_arguments_pass_as_they_are_up_to_the_end_of_the_call() -> None:
    output = '<tool_call>{"name": "f", "arguments": {\'a\': 1,,</tool_call>b'
    assert every_way(output, of_text("hermes")) == [*call("f", "{'a': 1,,"), ("content", "b")]


def test_text_behind_and_between_calls_is_content() -> None:
    one = '<tool_call>{"name": "f"}</tool_call>'
    assert every_way(f"a {one} b {one}\nc", of_text("hermes")) == [
        ("content", "a "), *call("f", "{}"), ("content", " b "), *call("f", "{}"), ("content", "c"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        '{"name": "Alice", "age": 3}',
        '{"name": "Alice"}',
        '{"name": "Alice Smith", "parameters": {}}',
        '{"parameters": {}}',
        "[1, 2]",
        "  Hello; {",
        "{",
        ";",
    ],
)
def test_an_answer_of_llama_that_is_no_call_is_text(answer: str) -> None:
    assert every_way(answer, of_text("llama3")) == [("content", answer)]


def test_ordinary_text_of_llama_is_not_held_back() -> None:
    recorder = Recorder()
    parser = OutputParser(of_text("llama3"), recorder)
    parser.feed(Segment("Hel", ANY, 1))
    assert recorder.pieces == [("content", "Hel")]


def test_code_behind_the_tag_of_llama_is_text() -> None:
    code = '<|python_tag|>brave_search.call(query="x")'
    assert every_way(code, of_text("llama3")) == [("content", code)]


def test_a_single_object_and_v31_calls_are_understood() -> None:
    assert every_way('[TOOL_CALLS]{"name": "f", "arguments": {"a": 1}}', of_text("mistral")) == call("f", '{"a": 1}')
    v31 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    assert every_way(v31, of_text("deepseek-v3")) == call("f", "{}")


@pytest.mark.parametrize(
    ("tools", "broken"),
    [
        ("mistral", "[TOOL_CALLS] I would call it"),
        ("mistral", "[TOOL_CALLS]" + "long " * 60 + "[ARGS]{}"),
        ("deepseek-v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
        ("deepseek-v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>\n```json\n{}\n```"),
    ],
)
def test_broken_calls_of_other_families_are_text(tools: ToolMarkup, broken: str) -> None:
    assert every_way(broken, of_text(tools)) == [("content", broken)]


def test_an_empty_block_is_nothing() -> None:
    assert every_way("a<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>", of_text("deepseek-v3")) == [("content", "a")]


def test_a_stop_string_within_what_was_no_call_is_met_and_within_a_call_it_is_not() -> None:
    options = of_text("llama3", stop_sequences=["STOP"])
    assert parsed_text(['{"name": "STOP", "x": 1}'], options) == ([("content", '{"name": "')], "STOP")
    assert parsed_text(['{"name": "f", "parameters": {"a": "STOP"}}'], options) == (call("f", '{"a": "STOP"}'), None)


def test_reasoning_begins_only_at_the_start_of_the_output() -> None:
    options = of_text("hermes", reasoning=THINK)
    assert every_way("a <think>b</think>", options) == [("content", "a <think>b</think>")]
    assert every_way("\n <think>b</think>\nc", options) == [("reasoning", "b"), ("content", "c")]
    assert every_way("<thin air", options) == [("content", "<thin air")]
    assert every_way("  ", options) == [("content", "  ")]


def test_reasoning_that_the_prompt_opened_may_open_again() -> None:
    options = ParsingOptions(markup=OutputMarkup("hermes", THINK), thinking_initial_stage=START)
    assert every_way("<think>\nb</think>c", options) == [("reasoning", "b"), ("content", "c")]
    assert every_way("b</think>c", options) == [("reasoning", "b"), ("content", "c")]


@pytest.mark.parametrize("stage", list(ThinkingInitialStage))
def test_a_model_without_reasoning_has_none(stage: ThinkingInitialStage) -> None:
    options = ParsingOptions(markup=OutputMarkup("hermes"), thinking_initial_stage=stage)
    assert every_way("<think>b</think>", options) == [("content", "<think>b</think>")]


def test_continued_reasoning_goes_on_whoever_opened_it() -> None:
    stage = ThinkingInitialStage.ReasoningContinuation
    options = of_text("hermes", reasoning=THINK, thinking_initial_stage=stage)
    assert every_way("\nb</think>c", options) == [("reasoning", "\nb"), ("content", "c")]


def test_calls_within_reasoning_are_reasoning() -> None:
    output = '<think>I could <tool_call>{"name": "f"}</tool_call></think><tool_call>{"name": "g"}</tool_call>'
    expected = [("reasoning", 'I could <tool_call>{"name": "f"}</tool_call>'), *call("g", "{}")]
    assert every_way(output, of_text("hermes", reasoning=THINK)) == expected


def test_json_output_and_calls_of_one_request() -> None:
    options = of_text("llama3", parse_json_output=True)
    assert every_way('{"name": "f", "parameters": {}}', options) == call("f", "{}")
    assert every_way('{"name": "Alice", "age": 3}', options) == [("content", '{"name": "Alice", "age": 3}')]


def test_many_broken_calls_in_one_piece_are_text() -> None:
    output = "<tool_call>" * 600
    assert parsed_text([output], of_text("hermes"))[0] == [("content", output)]


def test_log_probabilities_stay_with_the_pieces_of_what_was_no_call() -> None:
    class LogprobRecorder(Recorder):
        def content(self, text: str, logprobs: str | None) -> None:
            self.pieces.append((text, logprobs or "none"))

    recorder = LogprobRecorder()
    parser = OutputParser(of_text("hermes"), recorder)
    for text, logprobs in (("a", "A"), ("<tool", "B"), ("_call>", "C"), ("no", "D")):
        parser.feed(Segment(text, ANY, 1, logprobs))
    parser.end()
    assert recorder.pieces == [("a", "A"), ("<tool", "B"), ("_call>", "C"), ("no", "D")]


def test_arguments_are_json_also_when_they_hold_every_kind_of_value() -> None:
    arguments = json.dumps({"a": [1, -2.5e3, True, None, {"b": '\\"{}[]'}], "é\n": "\u2028"}, ensure_ascii=False)
    output = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert every_way(output, of_text("hermes")) == call("f", arguments)


def test_v4_calls_are_limited_to_one_as_well() -> None:
    tag = "｜DSML｜"
    one = f'<{tag} invoke name="f">\n</{tag} invoke>\n'
    output = f"<{tag} calls>\n{one}{one}</{tag} calls>"
    assert every_way(output, ParsingOptions(single_call=True)) == call("f", "{}")


def test_a_block_behind_the_reasoning_of_v4_is_read_when_a_call_is_required() -> None:
    tag = "｜DSML｜"
    output = f'why</think>\n\n<{tag} calls>\n<{tag} invoke name="f">\n</{tag} invoke>\n</{tag} calls>'
    options = ParsingOptions(thinking_initial_stage=START, starts_in_tool_calls=False)
    assert every_way(output, options) == [("reasoning", "why"), *call("f", "{}")]


FRAGMENTS = ['{"name": "f", "arguments": {', '{"name": "f", "parameters": ', "{}", '"a": "x\\', "STOP", "</think>"]
CHARACTERS = list('{}[],:;" \n<a')


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(MODELS)), st.data())
def test_any_output_means_the_same_at_every_split(name: str, data: st.DataObject) -> None:
    spellings = [*FRAGMENTS, *CHARACTERS, *TOOL_MARKERS[markup_of(name).tools] * 2, *(markup_of(name).reasoning or ())]
    output = "".join(data.draw(st.lists(st.sampled_from(spellings), max_size=14)))
    options = options_of(name, is_open=data.draw(st.booleans()), single_call=data.draw(st.booleans()))
    options.stop_sequences = data.draw(st.sampled_from([[], ["STOP"]]))
    options.parse_json_output = data.draw(st.booleans())
    every_way(output, options)
    every_way_of_tokens(name, output, options)
