"""The two DeepSeek encodings beside the reference, and what tells them apart."""

import json
from typing import Any

import deepseek_recipe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recipe
from recipe.conversation import (
    AssistantMessage,
    Conversation,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UrlImageSource,
    UserMessage,
)
from recipe.encoding.deepseek_v4 import DeepseekV4Encoding
from recipe.encoding.deepseek_v41 import DeepseekV41Encoding
from recipe.prompt import SpecialTokens
from tests.oracle.tokenizer_files import get_tokenizer

ENCODINGS = ["DeepseekV4Encoding", "DeepseekV41Encoding"]
SHORT = {
    "<｜begin▁of▁sentence｜>": "[B]",
    "<｜end▁of▁sentence｜>": "[E]",
    "<｜System｜>": "[S]",
    "<｜User｜>": "[U]",
    "<｜Assistant｜>": "[A]",
    "<｜latest_reminder｜>": "[L]",
    "\n": "~",
    "tool_result": "R",
}


def message_of(module: Any, word: str) -> Any:
    """`u1`: a user's text, `t1`: the result of call 1, `a(12)`: an assistant with calls, `s`, `r`, `p`: a prefix."""
    text, _, calls = word.rstrip(")").partition("(")
    if word.startswith("a"):
        return module.AssistantMessage(
            text, "r" if "r" in text else None, [module.ToolCall(call, "f", "{}") for call in calls] if calls else None
        )
    return {
        "u": lambda: module.UserMessage(text[1:]),
        "t": lambda: module.ToolMessage(text, text[1:] or None),
        "s": lambda: module.SystemMessage(text),
        "r": lambda: module.LatestReminderMessage(text),
        "p": lambda: module.AssistantMessage(text[1:], "r", None, True),
    }[word[0]]()


def rendered(module: Any, encoding: str, words: str, **settings: Any) -> tuple[str, list[tuple[int, int]]]:
    conversation = module.Conversation([message_of(module, word) for word in words.split()], **settings)
    prompt = getattr(module, encoding)().render_conversation(conversation)
    return prompt.prompt, prompt.special_ranges


WORDS = st.lists(
    st.sampled_from(
        ["u", "ua", "ub", "t", "t1", "t2", "t3", "a", "ar", "a(1)", "a(12)", "a(213)", "ar(1)", "s", "r", "p", "pc"]
    ),
    min_size=1,
    max_size=9,
).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(WORDS, st.booleans())
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_any_order_of_messages_renders_as_in_the_reference(encoding: str, words: str, thinking: bool) -> None:
    ours = rendered(recipe, encoding, words, thinking_mode=thinking)
    assert ours == rendered(deepseek_recipe, encoding, words, thinking_mode=thinking)


def short(encoding: Any, words: str) -> str:
    text, _ = rendered(recipe, encoding, words, thinking_mode=False)
    for spelling, sign in SHORT.items():
        text = text.replace(spelling, sign)
    return text


def test_v41_keeps_system_messages_in_place_and_v4_moves_them_to_the_front() -> None:
    assert short("DeepseekV41Encoding", "ua s ub") == "[B][U]a[S]s[U]b[A]</think>"
    assert short("DeepseekV4Encoding", "ua s ub") == "[B]s[U]a~~b[A]</think>"


def test_v41_puts_results_in_the_order_of_the_calls_and_v4_in_the_order_of_their_ids() -> None:
    assert short("DeepseekV41Encoding", "a(21) t1 t2").endswith("[U]<R>t2</R>~~<R>t1</R>[A]</think>")
    assert short("DeepseekV4Encoding", "a(21) t2 t1").endswith("[U]<R>t1</R>~~<R>t2</R>[A]</think>")


def test_v41_keeps_the_first_of_adjacent_reminders() -> None:
    assert short("DeepseekV41Encoding", "ua r1 r2") == "[B][U]a[L]r1[A]</think>"
    assert short("DeepseekV4Encoding", "ua r1 r2") == "[B][U]a[L]r1[L]r2[A]</think>"


ARGUMENTS = [
    '{"a": "text", "b": [1e-7, 1E+2, "\\u2028"], "c": -0, "d": 18446744073709551616}',
    '{"a": 1, "a": {"z": 1, "a": 2, "z": 3}}',
    '{"a\\"<b": null}',
    "{}",
    "[1]",
    '{"a": 1e400}',
    '{"a": "\\ud800"}',
    '{"a": 1} x',
    "",
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_arguments_of_calls_render_as_in_the_reference(encoding: str, arguments: str) -> None:
    def prompt(module: Any) -> tuple[str, list[tuple[int, int]]]:
        call = module.AssistantMessage("", None, [module.ToolCall("1", "f", arguments)])
        made = getattr(module, encoding)().render_conversation(module.Conversation([call]))
        return made.prompt, made.special_ranges

    assert prompt(recipe) == prompt(deepseek_recipe)


SPELLINGS = [
    {"ref": "ABCD", "box": "BC"},
    {"ref": "BC", "box": "ABC"},
    {"ref": "AA", "box": "AAA"},
    {"ref": "ABCD", "box": "CA"},
]


@pytest.mark.parametrize("spellings", SPELLINGS)
@pytest.mark.parametrize("text", ["ABCABCD", "xAAAAx", "ABC", "ABCBC"])
def test_overlapping_grounding_markers_match_as_in_the_reference(spellings: dict[str, str], text: str) -> None:
    def ranges(module: Any) -> list[tuple[int, int]]:
        encoding = module.DeepseekV41Encoding().with_special_tokens(module.SpecialTokens(**spellings))
        found: list[tuple[int, int]] = encoding.render_conversation(
            module.Conversation([module.AssistantMessage(text)])
        ).special_ranges
        return found

    assert ranges(recipe) == ranges(deepseek_recipe)


@pytest.mark.parametrize("version", [DeepseekV4Encoding, DeepseekV41Encoding])
def test_a_typed_image_token_is_no_placeholder(version: Any) -> None:
    typed = UserMessage.trusted("<｜image｜> <｜image｜>", [UrlImageSource("u")], ((10, 19),))
    prompt = version().render_conversation(Conversation([typed], thinking_mode=False))
    images = [span for span in prompt.special_ranges if prompt.prompt[slice(*span)] == "<｜image｜>"]
    assert len(images) == 1
    assert prompt.prompt[images[0][0] - 1] == " "


def test_images_are_listed_in_the_order_of_their_placeholders() -> None:
    conversation = Conversation(
        [
            UserMessage("<｜image｜>", [UrlImageSource("user")]),
            SystemMessage("<｜image｜>", [UrlImageSource("system")]),
            AssistantMessage("", tool_calls=[ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}")]),
            ToolMessage("<｜image｜>", "2", [UrlImageSource("second")]),
            ToolMessage("<｜image｜>", "1", [UrlImageSource("first")]),
        ]
    )

    def urls(encoding: Any) -> list[str | None]:
        return [source.url for source in encoding.render_conversation(conversation).image_sources]

    assert urls(DeepseekV41Encoding()) == ["user", "system", "first", "second"]
    assert urls(DeepseekV4Encoding()) == ["system", "user", "first", "second"]


@pytest.mark.parametrize("version", [DeepseekV4Encoding, DeepseekV41Encoding])
def test_special_ids_are_where_the_special_ranges_are(version: Any) -> None:
    tokenizer = get_tokenizer(recipe, "tiny")
    encoding = version().with_tokenizer(tokenizer)
    conversation = Conversation(
        [SystemMessage("<think> <｜User｜>"), UserMessage("hello<｜Assistant｜>"), AssistantMessage("<｜ref｜>x")],
        tools=[ToolDefinition("f", "<｜end▁of▁sentence｜>", {"type": "object", "title": "｜DSML｜"})],
    )
    prompt = encoding.render_conversation(conversation)
    ids = encoding.encode(conversation)
    spellings = [tokenizer.added_spellings[token] for token in ids if token in tokenizer.added_spellings]
    assert spellings == [prompt.prompt[start:end] for start, end in prompt.special_ranges]
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == prompt.prompt


def test_deferred_tools_are_not_listed_until_a_message_adds_them() -> None:
    tool = ToolDefinition("late", defer_loading=True)
    prompt = DeepseekV41Encoding().render_conversation(
        Conversation([UserMessage("u"), SystemMessage("", tools=[tool])], tools=[tool, ToolDefinition("early")])
    )
    before, _, after = prompt.prompt.partition("### Updated Tool Schemas\n\n")
    assert '"name": "late"' not in before
    assert json.loads(after[: after.index("}") + 1])["name"] == "late"


def test_encoding_needs_a_tokenizer_and_checks_its_arguments() -> None:
    encoding = DeepseekV41Encoding()
    with pytest.raises(RuntimeError, match="no tokenizer is attached to the encoding"):
        encoding.encode(Conversation())
    for call in (
        lambda: encoding.render_conversation(5),  # type: ignore[arg-type]
        lambda: encoding.encode(5),  # type: ignore[arg-type]
        lambda: encoding.with_tokenizer(5),  # type: ignore[arg-type]
        lambda: encoding.with_special_tokens(None),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            call()


def test_with_methods_leave_the_encoding_they_are_called_on_alone() -> None:
    encoding = DeepseekV41Encoding()
    other = encoding.with_special_tokens(SpecialTokens(user="[U]")).with_tokenizer(get_tokenizer(recipe, "tiny"))
    conversation = Conversation([UserMessage("u")])
    assert "[U]" in other.render_conversation(conversation).prompt
    assert "[U]" not in encoding.render_conversation(conversation).prompt
