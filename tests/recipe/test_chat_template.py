"""Prompts from chat templates: the same as transformers renders. What templates are given, and how they fail."""

from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer

from recipe.conversation import (
    AssistantMessage,
    Conversation,
    LatestReminderMessage,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from recipe.encoding.chat_template import ChatTemplateEncoding, TemplateError
from recipe.encoding.spelling_guard import Collector
from recipe.encoding.template_variables import template_variables
from recipe.errors import ConversionError
from tests.recipe.chat_conversations import FAMILIES, agent_conversation, encoding_of, numbered, smollm_template
from tests.recipe.chat_templates import TEMPLATES, VARIABLES, family_tokenizer, tokenizer_json

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
