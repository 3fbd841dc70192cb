"""The markup of a served model: detected, or as its options say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.entrypoints.markup_choice import choose_markup
from engine.entrypoints.options import OptionError, ServerOptions
from engine.entrypoints.served_model import prepare_config
from engine.runner.weights.model_files import ModelFiles, open_model
from recipe.markup.output_markup import OutputMarkup, ReasoningMarkers
from recipe.request import ThinkingSupport


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return open_model(None)


def markup(files: ModelFiles, template: str | None = None, **options: Any) -> OutputMarkup:
    files = files if template is None else replace(files, chat_template=template)
    found = choose_markup(ServerOptions(**options), files, "chat-template")
    assert found is not None
    return found


def test_the_template_tells_the_markup_unless_an_option_does(files: ModelFiles) -> None:
    assert markup(files, "[TOOL_CALLS]").tools == "mistral"
    assert markup(files, "[TOOL_CALLS]", tool_markup="llama3").tools == "llama3"
    assert markup(files, "</think>").reasoning == ReasoningMarkers("<think>", "</think>")
    assert markup(files, "</think>", reasoning_markers="none").reasoning is None
    assert markup(files, "</think>", reasoning_markers="<a> </a>").reasoning == ReasoningMarkers("<a>", "</a>")


def test_markers_are_tokens_as_the_vocabulary_has_them(files: ModelFiles) -> None:
    given = markup(files, reasoning_markers="<|im_start|> </a>")
    assert given.tokens == {"<|im_start|>"}


@pytest.mark.parametrize("text", ["", "<a>", "<a> b </a>"])
def test_reasoning_markers_are_two(files: ModelFiles, text: str) -> None:
    with pytest.raises(OptionError, match="two markers"):
        markup(files, reasoning_markers=text)


@pytest.mark.parametrize("given", [{"tool_markup": "hermes"}, {"reasoning_markers": "none"}])
def test_deepseek_encodings_have_a_markup_of_their_own(files: ModelFiles, given: dict[str, str]) -> None:
    assert choose_markup(ServerOptions(), files, "deepseek-v4") is None
    with pytest.raises(OptionError, match="goes with a chat template"):
        choose_markup(ServerOptions(**given), files, "deepseek-v4")  # type: ignore[arg-type]


def test_workers_are_told_and_a_model_without_markers_never_thinks(files: ModelFiles) -> None:
    files = replace(files, chat_template="{{ enable_thinking }}[TOOL_CALLS]")
    config = prepare_config(ServerOptions(), files, 2048)
    assert config.markup is not None
    assert config.markup.tools == "mistral"
    assert config.options.thinking_support is ThinkingSupport.Switchable
    config = prepare_config(ServerOptions(reasoning_markers="none"), files, 2048)
    assert config.options.thinking_support is ThinkingSupport.Never
