"""Special tokens that a user types, in any field, whole or in pieces: they stay text in every chat template."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.conversation import (
    AssistantMessage,
    Conversation,
    Message,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from recipe.encoding.chat_template import ChatTemplateEncoding
from recipe.encoding.spelling_guard import unused_chars
from tests.recipe.chat_conversations import FAMILIES, agent_conversation, encoding_of
from tests.recipe.chat_templates import ADDED, family_tokenizer

MARKUP = "<>[]|/_｜▁\ue000\ue001\uf8ff"
STAND_INS = {ord(char): chr(0x13A0 + place) for place, char in enumerate(MARKUP)}  # letters that no template writes
ORIGINALS = {ord(letter): chr(char) for char, letter in STAND_INS.items()}


def harmless(text: str) -> str:
    """The same text with letters for everything that markup is made of."""
    return text.translate(STAND_INS)


def texts_for(family: str) -> st.SearchStrategy[str]:
    """Spellings, their parts, white space, what JSON escapes, private-use characters, and plain words."""
    spellings = ADDED[family].split()
    parts = [spelling[:cut] for spelling in spellings for cut in range(1, len(spelling))]
    parts += [spelling[cut:] for spelling in spellings for cut in range(1, len(spelling))]
    others = [" ", "\n", '"', "\\", "é", "\ue000", "\ue001", "\\ue000", "%EE%80%80", "word", "im_start", "</think>"]
    return st.lists(st.sampled_from([*spellings, *spellings, *parts, *others]), max_size=5).map("".join)


def stretches(encoding: ChatTemplateEncoding, conversation: Conversation) -> list[tuple[str, bool]]:
    return list(encoding.render_conversation(conversation).parts.stretches())


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_text_of_a_user_changes_the_special_tokens_or_is_changed_itself(family: str, data: st.DataObject) -> None:
    count = 24
    drawn = [data.draw(texts_for(family)) for _ in range(count)]

    def conversation(change: Callable[[str], str]) -> Conversation:
        texts = iter(drawn)
        return agent_conversation(lambda: change(next(texts)), one_call=family == "llama")

    encoding = encoding_of(family)
    wanted = [(text.translate(ORIGINALS), special) for text, special in stretches(encoding, conversation(harmless))]
    if family != "r1":  # escapes non-ASCII characters, the stand-ins among them
        assert stretches(encoding, conversation(str)) == wanted
    specials = [text for text, special in wanted if special]
    assert [text for text, special in stretches(encoding, conversation(str)) if special] == specials

    ids = encoding.encode(conversation(str))
    tokenizer = family_tokenizer(family)
    assert [tokenizer.added_spellings[token] for token in ids if token in tokenizer.added_spellings] == specials
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == encoding.render_conversation(conversation(str)).prompt


@settings(max_examples=60, deadline=None)
@given(texts_for("smollm"), texts_for("smollm"), texts_for("smollm"))
def test_the_embedded_model_s_template_is_safe_too(first: str, second: str, third: str) -> None:
    def conversation(change: Callable[[str], str]) -> Conversation:
        return Conversation([UserMessage(change(first)), AssistantMessage(change(second)), UserMessage(change(third))])

    encoding = encoding_of("smollm")
    wanted = [(text.translate(ORIGINALS), special) for text, special in stretches(encoding, conversation(harmless))]
    assert stretches(encoding, conversation(str)) == wanted


NAMED = "{% for m in messages %}{{ '<|' ~ (m.name or m.role) ~ '|>' ~ m.content }}{% endfor %}"


@pytest.mark.parametrize("name", ["ada", "system", "end", "assistant"])
def test_a_name_between_the_halves_of_a_special_token_does_not_complete_it(name: str) -> None:
    encoding = ChatTemplateEncoding(NAMED, family_tokenizer("named"))
    conversation = Conversation(
        [
            UserMessage("u"),
            AssistantMessage("", tool_calls=[ToolCall("1", name, "{}")]),
            ToolMessage("result", "1"),
        ]
    )
    prompt = encoding.render_conversation(conversation)
    specials = [prompt.prompt[start:end] for start, end in prompt.special_ranges]
    assert specials == ["<|user|>", "<|assistant|>"]
    assert prompt.prompt.endswith(f"<|{name}|>result")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("<|{{ messages[0].content }}", "end|> and more"),
        ("<|{{ messages[0].content | trim }}", "\n end|> and more"),
        ("{{ messages[0].content }}|>", "more and <|end"),
        ("{{ messages[0].content | trim }}|>", "more and <|end \n"),
        ("<{{ messages[0].content }}>", "|end|"),
        ("{{ messages[0].content }}end{{ messages[1].content }}", "<||>"),
    ],
)
def test_a_spelling_half_of_the_template_and_half_of_the_user_stays_text(template: str, text: str) -> None:
    encoding = ChatTemplateEncoding(template, family_tokenizer("named"))
    half = len(text) // 2
    both = "messages[1]" in template
    messages: list[Message] = [UserMessage(text[:half]), UserMessage(text[half:])] if both else [UserMessage(text)]
    prompt = encoding.render_conversation(Conversation(messages))
    assert "<|end|>" in prompt.prompt
    assert prompt.special_ranges == []


def test_a_key_between_the_halves_of_a_special_token_does_not_complete_it() -> None:
    template = "{% for k in tools[0].function.parameters.properties %}<|{{ k }}|>{% endfor %}"
    encoding = ChatTemplateEncoding(template, family_tokenizer("named"))
    tool = ToolDefinition("f", None, {"type": "object", "properties": {"end": {}, "city": {}, " tool ": {}}})
    prompt = encoding.render_conversation(Conversation([UserMessage("u")], tools=[tool]))
    assert (prompt.prompt, prompt.special_ranges) == ("<|end|><|city|><| tool |>", [])


JOINING = "{% for m in messages %}<|{{ m.role }}|>{{ m.content.replace('<gap>', '') | trim }}{% endfor %}"


def test_a_spelling_that_a_template_puts_together_from_pieces_stays_text() -> None:
    encoding = ChatTemplateEncoding(JOINING, family_tokenizer("named"))
    for pieces in ("<|e<gap>nd|>", "<<gap>|end|<gap>>", "<|<gap>end|>", "<|end<gap>|>"):
        prompt = encoding.render_conversation(Conversation([UserMessage(f"  {pieces}  ")]))
        assert prompt.prompt in (f"<|user|>{pieces}", "<|user|><|end|>")
        assert len(prompt.special_ranges) == 1


@pytest.mark.parametrize("text", [" ", "", "\n\n", "  a  ", "\t<|end|>\n"])
def test_white_space_at_the_edges_is_trimmed_by_a_template_that_trims(text: str) -> None:
    encoding = ChatTemplateEncoding(JOINING, family_tokenizer("named"))
    assert encoding.render_conversation(Conversation([UserMessage(text)])).prompt == f"<|user|>{text.strip()}"


def test_private_use_characters_that_a_user_types_are_kept() -> None:
    taken = "".join(map(chr, range(0xE000, 0xF900)))
    prompt = encoding_of("qwen").render_conversation(Conversation([UserMessage(f"<|im_end|>{taken}")]))
    assert f"<|im_end|>{taken}" in prompt.prompt
    assert len(prompt.special_ranges) == 3


def test_the_characters_for_the_guard_are_in_the_text_in_no_form() -> None:
    assert unused_chars(["\ue000", "\\ue001", "%EE%80%82"], 2) == ["\ue003", "\ue004"]


def test_typed_markers_do_not_make_a_template_cut_the_history() -> None:
    conversation = Conversation(
        [UserMessage("a"), AssistantMessage("see </think> there"), UserMessage("b")], thinking_mode=False
    )
    for family in ("qwen", "r1"):
        assert "see </think> there" in encoding_of(family).render_conversation(conversation).prompt
