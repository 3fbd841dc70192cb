"""The seam's chunks, and the options of the parser: what they hold and what they refuse."""

from typing import Any

import pytest

from recipe import (
    InferenceChunk,
    InferenceFinishReason,
    ParsingOptions,
    PromptUsage,
    SpecialTokens,
    ThinkingInitialStage,
)


def test_a_chunk_has_the_properties_of_its_kind_and_none_of_the_others() -> None:
    names = ("content", "token_ids", "finish_reason", "prompt_usage", "token_count", "system_fingerprint")
    length = InferenceFinishReason.Length
    usage = PromptUsage(prompt_tokens=3)
    chunks: dict[str, tuple[InferenceChunk, dict[str, Any]]] = {
        "ready": (
            InferenceChunk.ready(prompt_usage=usage, system_fingerprint="fp"),
            {"prompt_usage": usage, "system_fingerprint": "fp"},
        ),
        "text": (InferenceChunk.text("x"), {"content": "x", "token_count": 0}),
        "tokens": (InferenceChunk.tokens((1, 2)), {"token_ids": [1, 2]}),
        "finish": (
            InferenceChunk.finish(length),
            {"finish_reason": length},
        ),
    }
    for kind, (chunk, properties) in chunks.items():
        assert chunk.kind == kind
        assert {name: getattr(chunk, name) for name in names} == dict.fromkeys(names) | properties


def test_a_finish_chunk_may_count_tokens_that_no_other_chunk_has() -> None:
    assert InferenceChunk.finish(InferenceFinishReason.Stop, token_count=1).token_count == 1
    with pytest.raises(OverflowError):
        InferenceChunk.finish(InferenceFinishReason.Stop, token_count=-1)


def test_a_ready_chunk_without_a_usage_reports_none_used() -> None:
    usage = InferenceChunk.ready().prompt_usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.prompt_cache_hit_tokens) == (0, 0)


@pytest.mark.parametrize("token_ids", [[1], (1, 2), range(3), b"ab", [True]])
def test_token_ids_are_any_sequence_of_integers(token_ids: Any) -> None:
    assert InferenceChunk.tokens(token_ids).token_ids == list(token_ids)


@pytest.mark.parametrize(
    ("token_ids", "error"),
    [("ab", TypeError), ({1}, TypeError), ([1.0], TypeError), ([-1], OverflowError), ([2**32], OverflowError)],
)
def test_other_token_ids_are_refused(token_ids: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        InferenceChunk.tokens(token_ids)


@pytest.mark.parametrize(
    ("logprobs", "error"),
    [
        ([[0.5, []]], TypeError),
        ([(0.5,)], ValueError),
        ([("0.5", [])], TypeError),
        ([(0.5, [(-1, 0.5)])], OverflowError),
    ],
)
def test_log_probabilities_of_another_shape_are_refused(logprobs: Any, error: Any) -> None:
    with pytest.raises(error):
        InferenceChunk.tokens([1], logprobs)


def test_counts_are_unsigned_and_text_has_no_lone_surrogates() -> None:
    with pytest.raises(OverflowError):
        PromptUsage(prompt_tokens=-1)
    with pytest.raises(OverflowError):
        InferenceChunk.text("a", -1)
    with pytest.raises(UnicodeEncodeError):
        InferenceChunk.text("\ud800")


def test_enum_members_print_as_the_reference_prints_them_and_convert_to_their_position() -> None:
    assert repr(InferenceFinishReason.ContentFilter) == "InferenceFinishReason.ContentFilter"
    assert int(InferenceFinishReason.ContentFilter) == 2
    assert repr(ThinkingInitialStage.ReasoningStart) == "ThinkingInitialStage.ReasoningStart"
    assert [stage.starts_in_reasoning() for stage in ThinkingInitialStage] == [True, True, False]


def test_parsing_options_can_be_set_and_lists_are_copies() -> None:
    options = ParsingOptions(stop_sequences=("a",))
    options.stop_sequences.append("b")
    assert options.stop_sequences == ["a"]
    options.parse_json_output = True
    options.special_tokens = SpecialTokens(dsml="§")
    assert options.parse_json_output


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("parse_tool_calls", 1),
        ("thinking_initial_stage", 0),
        ("stop_sequences", "ab"),
        ("stop_sequences", [1]),
        ("special_tokens", None),
    ],
)
def test_parsing_options_of_other_types_are_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError):
        setattr(ParsingOptions(), name, value)
