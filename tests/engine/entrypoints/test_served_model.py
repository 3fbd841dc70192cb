"""Server options and model files decide how requests are converted, and converted requests how tokens are drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.entrypoints.generation import sampling_params
from engine.entrypoints.options import OptionError, ServerOptions
from engine.entrypoints.served_model import prepare_config, served_names
from engine.runner.weights.model_files import ModelFiles, open_model
from recipe.errors import ConversionError
from recipe.extensions import Extensions
from recipe.prepare import PreparedRequest
from recipe.request import (
    ConversionOptions,
    InferenceOptions,
    ModelVersion,
    ReasoningContentBehavior,
    ThinkingSupport,
    WebSearchBehavior,
)
from recipe.stream.parsing_options import ParsingOptions


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return open_model(None)


def conversion(files: ModelFiles, **options: Any) -> ConversionOptions:
    return prepare_config(ServerOptions(**options), files, 2048).options


def test_the_server_converts_with_every_extension_for_a_model_with_a_chat_template(files: ModelFiles) -> None:
    options = conversion(files)
    assert options.extensions == Extensions.all(max_n=16)
    assert options.model_version(files.name) is ModelVersion.ChatTemplate
    assert options.thinking_support is ThinkingSupport.Never
    with pytest.raises(ConversionError):
        options.model_version("gpt-4o")


def test_aliases_are_names_and_a_star_is_any_name(files: ModelFiles) -> None:
    assert conversion(files, model_alias=["gpt-4o"]).model_version("gpt-4o") is ModelVersion.ChatTemplate
    assert conversion(files, model_alias=["*"]).model_version("whatever") is ModelVersion.ChatTemplate


def test_each_name_is_listed_once_behind_those_of_the_model_and_a_star_is_none(files: ModelFiles) -> None:
    options = ServerOptions(served_model_name=["a", "b"], model_alias=["*", "gpt-4o", "a"])
    assert served_names(options, files) == ["a", "b", "gpt-4o"]
    assert served_names(ServerOptions(model_alias=["gpt-4o"]), files) == [files.name, "gpt-4o"]


def test_options_of_requests_reach_the_conversion(files: ModelFiles) -> None:
    given = conversion(
        files, max_tokens_bound=77, missing_reasoning="reject", web_search="drop", default_thinking=False
    )
    assert (given.thinking_max_tokens_upper_bound, given.non_thinking_max_tokens_upper_bound) == (77, 77)
    assert given.reasoning_content_behavior is ReasoningContentBehavior.Reject
    assert given.messages_web_search is given.responses_web_search is WebSearchBehavior.Drop
    assert not given.default_thinking_mode
    default = conversion(files)
    assert default.messages_web_search is WebSearchBehavior.Reject
    assert default.responses_web_search is WebSearchBehavior.Drop


def test_the_files_of_a_model_say_what_it_samples_with_and_whether_it_thinks(files: ModelFiles) -> None:
    generation = {"temperature": 0.6, "top_k": 20}
    options = conversion(replace(files, generation=generation, chat_template="{{ enable_thinking }}<think>"))
    assert (options.sampling_defaults.temperature, options.sampling_defaults.top_k) == (0.6, 20)
    assert options.thinking_support is ThinkingSupport.Switchable
    with pytest.raises(OptionError, match="top_p"):
        conversion(replace(files, generation={"top_p": 2.0}))


def test_every_sampling_field_of_a_request_reaches_the_engine() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.5,
        "seed": 3,
        "top_k": 4,
        "min_p": 0.25,
        "repetition_penalty": 1.5,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "logit_bias": {5: 2.0},
        "min_tokens": 2,
        "bad_words_token_ids": [[7, 8]],
        "stop_token_ids": [9],
        "ignore_eos": True,
    }
    inference = InferenceOptions(logprobs=True, top_logprobs=2, **fields)
    prepared = PreparedRequest(b"", "m", False, 10, inference, ParsingOptions(), None)
    params = sampling_params(prepared, None)
    assert {name: getattr(params, name) for name in fields} == fields
    assert (params.max_tokens, params.logprobs) == (10, 2)
