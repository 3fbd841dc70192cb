"""The stages of model output: what is reasoning, content and a tool call, piece by piece."""

import pytest

from recipe.stream.parser import OutputParser
from recipe.stream.parsing_options import ParsingOptions, ThinkingInitialStage
from recipe.stream.segment import ANY, PLAIN, SPECIAL, Segment
from tests.recipe.recorded_output import Entry, Recorder

DSML = "｜DSML｜"
START = ThinkingInitialStage.ReasoningStart
THINKING = ParsingOptions(thinking_initial_stage=START)
CALLS = ParsingOptions(starts_in_tool_calls=True)
JSON = ParsingOptions(parse_json_output=True)


def steps(pieces: list[str], options: ParsingOptions | None = None) -> list[list[Entry]]:
    """What each text chunk brings, and at last what the end brings."""
    recorder = Recorder()
    parser = OutputParser(options or ParsingOptions(), recorder)
    seen = []
    for piece in pieces:
        parser.feed(Segment(piece, ANY, 1))
        seen.append(recorder.pieces[:])
        recorder.pieces.clear()
    parser.end()
    return [*seen, recorder.pieces]


def output(text: str, options: ParsingOptions | None = None) -> list[Entry]:
    return [entry for step in steps([text], options) for entry in step]


def test_text_is_given_out_in_the_pieces_it_came_in() -> None:
    assert steps(["a", "b"]) == [[("content", "a")], [("content", "b")], []]


def test_a_chunk_whose_end_may_begin_a_marker_waits_as_a_whole() -> None:
    assert steps(["one<", "/", "x"]) == [[], [], [("content", "one<"), ("content", "/"), ("content", "x")], []]


def test_reasoning_ends_at_its_tag_and_newlines_around_the_tag_vanish() -> None:
    assert output("\n\nwhy\n\n</think>\n\nbecause", THINKING) == [("reasoning", "why"), ("content", "because")]


def test_a_continued_reasoning_keeps_its_leading_newlines() -> None:
    options = ParsingOptions(thinking_initial_stage=ThinkingInitialStage.ReasoningContinuation)
    assert output("\nwhy", options) == [("reasoning", "\nwhy")]


def test_a_continued_answer_keeps_its_leading_newlines() -> None:
    options = ParsingOptions(thinking_initial_stage=ThinkingInitialStage.ContentContinuation)
    assert output("\n\nfoo", options) == [("content", "\n\nfoo")]


def test_a_further_end_tag_in_content_is_removed_and_its_newlines_stay() -> None:
    assert output("b\n</think>\nc") == [("content", "b\n"), ("content", "\nc")]


def test_the_start_tag_is_text_everywhere() -> None:
    assert output("<think>a</think><think>b", THINKING) == [("reasoning", "<think>a"), ("content", "<think>b")]


@pytest.mark.parametrize("space", [" ", ""])
def test_both_spellings_of_tool_calls_are_understood(space: str) -> None:
    name = "calls" if space else "tool_calls"
    text = (
        f'x\n\n<{DSML}{space}{name}>\n<{DSML}{space}invoke name="f">\n'
        f'<{DSML}{space}parameter name="a" string="true">1</{DSML}{space}parameter>\n'
        f'<{DSML}{space}parameter name="b" string="false">[2]</{DSML}{space}parameter>\n'
        f"</{DSML}{space}invoke>\n</{DSML}{space}{name}> ignored"
    )
    written = ["{", '"a"', ": ", '"', "1", '"', ", ", '"b"', ": ", "[2]", "}"]
    assert output(text) == [("content", "x"), ("call", "f"), *[("arguments", piece) for piece in written]]


def test_a_call_without_parameters_has_an_empty_object() -> None:
    assert output(f'invoke name="f"></{DSML} invoke>', CALLS) == [("call", "f"), ("arguments", "{}")]


def test_a_tool_block_ends_reasoning() -> None:
    text = f'why\n\n<{DSML} calls>\n<{DSML} invoke name="f">'
    assert output(text, THINKING) == [("reasoning", "why"), ("call", "f")]


def test_string_arguments_are_escaped_and_others_are_raw() -> None:
    text = f'invoke name="f">parameter name="a" string="true">"\\\n\x01é</{DSML}'
    assert output(text, CALLS)[-2:] == [("arguments", '\\"\\\\\\n\\u0001é'), ("arguments", '"')]


def test_an_unfinished_call_keeps_what_was_given_out_and_closes_nothing() -> None:
    text = 'invoke name="f">parameter name="a" string="true">v'
    assert [piece for kind, piece in output(text, CALLS) if kind == "arguments"] == ["{", '"a"', ": ", '"', "v"]


def test_markup_of_tool_calls_is_text_when_tool_calls_are_not_parsed() -> None:
    text = f"a\n<{DSML} calls>"
    assert steps(["a\n", f"<{DSML} calls>"], ParsingOptions(parse_tool_calls=False))[0] == [("content", "a\n")]
    assert output(text, ParsingOptions(parse_tool_calls=False)) == [("content", text)]


def test_what_is_no_tag_in_a_tool_block_is_ignored() -> None:
    assert output(f'junk </{DSML} x> invoke name="f"junk', CALLS) == [("call", "f")]


def test_after_the_tool_block_everything_is_ignored() -> None:
    assert output(f'</{DSML} calls>text<{DSML} invoke name="f">', CALLS) == []


def test_text_beside_json_becomes_a_space_a_piece() -> None:
    assert output('Here:\n{"a": 1}', JSON) == [("content", " "), ("content", "{"), ("content", '"a": 1}')]


def test_a_fence_around_json_vanishes() -> None:
    assert output('```json\n{"a": 1}\n```\n', JSON) == [("content", '{"a": 1}'), ("content", " ")]


def test_end_tag_and_tool_markup_are_text_within_json() -> None:
    assert output(f"{{</think><{DSML} calls>", JSON) == [("content", "{"), ("content", f"</think><{DSML} calls>")]


def test_stop_strings_stop_content_alone() -> None:
    recorder = Recorder()
    parser = OutputParser(ParsingOptions(thinking_initial_stage=START, stop_sequences=["no"]), recorder)
    parser.feed(Segment("no</think>yes no more", ANY, 1))
    assert recorder.pieces == [("reasoning", "no"), ("content", "yes ")]
    assert parser.stop_sequence == "no"


def test_markers_of_token_chunks_are_special_tokens_and_no_spellings() -> None:
    recorder = Recorder()
    parser = OutputParser(THINKING, recorder)
    parser.feed(Segment("</think>", PLAIN, 8))
    parser.feed(Segment("</think>", SPECIAL, 1))
    parser.feed(Segment("a", PLAIN, 1))
    assert recorder.pieces == [("reasoning", "</think>"), ("content", "a")]


def test_stop_strings_are_no_special_tokens() -> None:
    recorder = Recorder()
    parser = OutputParser(ParsingOptions(stop_sequences=["<end>"]), recorder)
    parser.feed(Segment("<end>", SPECIAL, 1))
    assert parser.stop_sequence is None
    parser.feed(Segment("<end>", PLAIN, 5))
    assert parser.stop_sequence == "<end>"


def test_log_probabilities_stay_with_every_piece_of_their_chunk() -> None:
    class WithLogprobs(Recorder):
        def content(self, text: str, logprobs: str | None) -> None:
            self.pieces.append((text, str(logprobs)))

    recorder = WithLogprobs()
    OutputParser(ParsingOptions(), recorder).feed(Segment("a</think>b", ANY, 3, "LP"))
    assert recorder.pieces == [("a", "LP"), ("b", "LP")]
