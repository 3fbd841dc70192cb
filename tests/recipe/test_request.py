"""Conversion options are immutable values; a converted request resolves how much may be generated."""

import pytest

from recipe.conversation import Conversation, UserMessage
from recipe.errors import ConversionError
from recipe.prompt import SpecialToken, SpecialTokens
from recipe.request import (
    ConversationRequest,
    ConversionOptions,
    InferenceOptions,
    ModelVersion,
    ReasoningContentBehavior,
    WebSearchBehavior,
)
from recipe.stream.parsing_options import ParsingOptions


def request(*, max_tokens: int | None = None, thinking: bool = True, effort: str | None = None) -> ConversationRequest:
    return ConversationRequest.converted(
        Conversation([UserMessage("x")], thinking_mode=thinking, reasoning_effort=effort),  # type: ignore[arg-type]
        ModelVersion.DeepseekV41Flash,
        InferenceOptions(temperature=1.0, top_p=1.0, max_tokens=max_tokens),
        ParsingOptions(),
        stream=False,
    )


def test_enum_members_print_their_class_and_know_their_position() -> None:
    assert repr(ModelVersion.DeepseekV41Flash) == "ModelVersion.DeepseekV41Flash"
    assert int(WebSearchBehavior.Reject) == 1
    assert ModelVersion.DeepseekV4Pro != 0


def test_a_changed_option_leaves_the_original_alone() -> None:
    options = ConversionOptions()
    changed = (
        options.with_default_thinking_mode(False)
        .with_reasoning_content_behavior(ReasoningContentBehavior.Reject)
        .with_messages_web_search(WebSearchBehavior.Drop)
        .with_responses_web_search(WebSearchBehavior.Reject)
        .with_thinking_max_tokens_upper_bound(5)
        .with_non_thinking_max_tokens_upper_bound(6)
        .with_special_tokens(SpecialTokens(image="<i>"))
        .with_model_alias("m", ModelVersion.DeepseekV4Pro)
    )
    assert options.default_thinking_mode and not changed.default_thinking_mode
    assert options.reasoning_content_behavior is ReasoningContentBehavior.FillEmpty
    assert changed.reasoning_content_behavior is ReasoningContentBehavior.Reject
    assert (changed.messages_web_search, changed.responses_web_search) == (
        WebSearchBehavior.Drop,
        WebSearchBehavior.Reject,
    )
    assert (changed.thinking_max_tokens_upper_bound, changed.non_thinking_max_tokens_upper_bound) == (5, 6)
    assert changed.special_tokens.token(SpecialToken.Image) == "<i>"
    assert "m" in changed.model_versions_by_name and "m" not in options.model_versions_by_name


def test_the_table_of_models_is_handed_out_as_a_copy() -> None:
    options = ConversionOptions()
    options.model_versions_by_name["x"] = ModelVersion.DeepseekV4Pro
    assert "x" not in options.model_versions_by_name


def test_an_unknown_model_is_refused_with_the_names_by_alphabet() -> None:
    options = ConversionOptions().with_model_alias("A", ModelVersion.DeepseekV4Pro)
    expected = "The supported API model names are A, DeepSeek-V4-Pro, DeepSeek-V4.1-Flash, but you passed a."
    with pytest.raises(ConversionError, match=expected):
        options.model_version("a")


@pytest.mark.parametrize("bad", [-1, 2**32, 2**70])
def test_a_bound_outside_32_bits_overflows(bad: int) -> None:
    with pytest.raises(OverflowError):
        ConversionOptions(thinking_max_tokens_upper_bound=bad)


@pytest.mark.parametrize(
    "arguments",
    [{"default_thinking_mode": 1}, {"messages_web_search": "Drop"}, {"thinking_max_tokens_upper_bound": 1.0}],
)
def test_an_option_of_another_type_is_a_type_error(arguments: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        ConversionOptions(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("thinking", "effort", "default"), [(False, None, 8192), (True, "high", 65536), (True, "max", 131072)]
)
def test_a_request_without_a_limit_gets_the_default_of_its_mode(
    thinking: bool, effort: str | None, default: int
) -> None:
    assert request(thinking=thinking, effort=effort).resolve_max_tokens(10, 1_000_000) == default


def test_what_the_context_has_left_caps_the_limit_but_one_token_is_always_allowed() -> None:
    assert request(max_tokens=50).resolve_max_tokens(50, 100) == 50
    assert request().resolve_max_tokens(90, 100) == 10
    assert request().resolve_max_tokens(100, 100) == 1


def test_a_prompt_and_limit_beyond_the_context_are_refused_with_the_counts() -> None:
    with pytest.raises(ConversionError) as caught:
        request(max_tokens=50).resolve_max_tokens(51, 100)
    assert str(caught.value) == (
        "This model's maximum context length is 100 tokens. However, you requested 101 tokens (51 in the messages, "
        "50 in the completion). Please reduce the length of the messages or completion."
    )


def test_a_total_beyond_32_bits_counts_as_the_largest_number() -> None:
    assert request(max_tokens=50).resolve_max_tokens(2**32 - 1, 2**32 - 1) == 1


def test_a_request_made_by_hand_has_default_options() -> None:
    made = ConversationRequest(Conversation(), ModelVersion.DeepseekV4Pro)
    assert made.inference_options == InferenceOptions(temperature=None, top_p=None)
    assert made.parsing_options.parse_tool_calls and not made.stream
    with pytest.raises(TypeError):
        ConversationRequest("x", ModelVersion.DeepseekV4Pro)  # type: ignore[arg-type]
