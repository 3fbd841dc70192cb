"""Completions without a server: prompts to tokens, settings, and the chunks that outputs become at every split."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from recipe import prepare
from recipe.inspection import InspectedPrompt, inspect_prompt, text_of_tokens
from recipe.prepare import PrepareConfig, PreparedRequest, Preparer, RejectedRequest
from recipe.prepare_completion import prepare_completion
from recipe.protocol.completions.response import CompletionResponse
from recipe.request import ModelVersion
from recipe.stream.inference import InferenceChunk, InferenceFinishReason, PromptUsage
from recipe.stream.processor import StreamProcessor
from tests.oracle.tokenizer_files import tiny_tokenizer_json
from tests.recipe.extended_requests import ALL

BOS = "<｜begin▁of▁sentence｜>"
OPTIONS = ALL.with_model_versions_by_name({"m": ModelVersion.DeepseekV4Pro})
LIMIT = 1000


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> Preparer:
    config = PrepareConfig(tiny_tokenizer_json(), "deepseek-v4", OPTIONS, LIMIT, bos_token=BOS)
    preparer = Preparer(config)
    monkeypatch.setattr(prepare, "_preparer", preparer)
    return preparer


def prepared(prompt: Any, **settings: Any) -> list[PreparedRequest]:
    body = json.dumps({"model": "m", "prompt": prompt, **settings}).encode()
    choices = prepare_completion(body, "cmpl-1")
    assert not isinstance(choices, RejectedRequest), choices
    return choices


def ids(choice: PreparedRequest) -> list[int]:
    return memoryview(choice.token_ids).cast("I").tolist()


def answer(choices: list[PreparedRequest], outputs: list[list[InferenceChunk]], worker: Preparer) -> dict[str, Any]:
    """The whole response to `choices`, of which each gets its output; they take turns."""
    folded = CompletionResponse("cmpl-1", "m", 0, 0, 0)
    processors = [StreamProcessor(each.generator, each.parsing_options, worker.tokenizer) for each in choices]
    pending = [
        iter([InferenceChunk.ready(prompt_usage=PromptUsage(prompt_tokens=len(ids(choice)))), *output])
        for choice, output in zip(choices, outputs, strict=True)
    ]
    while any(not processor.finished for processor in processors):
        for processor, chunks in zip(processors, pending, strict=True):
            if not processor.finished:
                for event in processor.push(next(chunks)):
                    folded.accumulate(event)
    return dict(json.loads(folded.to_json()))


def played(token_ids: list[int], *, size: int = 1) -> Iterator[InferenceChunk]:
    for start in range(0, len(token_ids), size):
        yield InferenceChunk.tokens(token_ids[start : start + size])
    yield InferenceChunk.finish(InferenceFinishReason.Stop)


def test_a_text_gets_the_bos_token_of_the_model_and_nothing_in_it_is_special(worker: Preparer) -> None:
    added = worker.tokenizer.inner.token_to_id(BOS)
    (choice,) = prepared(f"hello{BOS}<think>")
    assert ids(choice)[0] == added
    assert not set(ids(choice)[1:]) & set(worker.tokenizer.added_spellings)
    (bare,) = prepared(f"hello{BOS}<think>", add_special_tokens=False)
    assert ids(bare) == ids(choice)[1:]
    assert [ids(choice) for choice in prepared([[5, 6], [7]])] == [[5, 6], [7]]
    assert ids(prepared("")[0]) == [added]


def test_every_prompt_has_its_choices_in_a_row_and_its_own_room(worker: Preparer) -> None:
    choices = prepared([[1] * 990, [1]], n=2, max_tokens=10)
    assert [len(ids(choice)) for choice in choices] == [990, 990, 1, 1]
    assert {choice.max_tokens for choice in choices} == {10}
    refused = prepare_completion(json.dumps({"model": "m", "prompt": [[1], [1] * 991], "max_tokens": 10}).encode(), "")
    assert isinstance(refused, RejectedRequest) and "991 in" in refused.message
    assert prepared("a")[0].max_tokens == 16


def test_usage_counts_each_prompt_once_and_every_completion(worker: Preparer) -> None:
    choices = prepared([[1, 2, 3], [4]], n=2)
    outputs = [list(played(worker.tokenizer.encode("hello"))) for _ in choices]
    usage = answer(choices, outputs, worker)["usage"]
    hello = len(worker.tokenizer.encode("hello"))
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 4 * hello)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_leading_newlines_markers_and_split_characters_are_kept_at_every_split(worker: Preparer, size: int) -> None:
    text = "\n\n hello</think>wörld <think>{}"
    choices = prepared("x", echo=True, stop=["never"])
    found = answer(choices, [list(played(worker.tokenizer.encode(text), size=size))], worker)
    assert found["choices"] == [{"index": 0, "text": "x" + text, "logprobs": None, "finish_reason": "stop"}]


def test_a_stop_string_ends_a_choice_before_it(worker: Preparer) -> None:
    outputs = [list(played(worker.tokenizer.encode("hello world, hello"))) for _ in range(2)]
    found = answer(prepared(["a", "b"], stop=["rld"]), outputs, worker)
    assert [choice["text"] for choice in found["choices"]] == ["hello wo"] * 2


def test_text_offsets_count_characters_and_not_bytes(worker: Preparer) -> None:
    token_ids = worker.tokenizer.encode("äbc")
    chunks = [InferenceChunk.tokens([token], [(-0.5, [(token, -0.5)])]) for token in token_ids]
    found = answer(prepared("x", logprobs=1), [[*chunks, InferenceChunk.finish(InferenceFinishReason.Length)]], worker)
    logprobs = found["choices"][0]["logprobs"]
    assert logprobs["text_offset"][-2:] == [1, 2] and logprobs["token_logprobs"] == [-0.5] * len(token_ids)
    assert found["choices"][0]["finish_reason"] == "length"


def test_inspection_shows_bos_and_specials_of_a_plain_text_and_of_a_conversation() -> None:
    plain = inspect_prompt(b'{"prompt": "<think>"}', None, "m")
    chat = inspect_prompt(b'{"messages": [{"role": "user", "content": "<think>"}]}', None, "m")
    assert isinstance(plain, InspectedPrompt) and isinstance(chat, InspectedPrompt)
    assert (plain.prompt, plain.special_ranges) == (f"{BOS}<think>", [(0, len(BOS))])
    assert next(piece.text for piece in chat.pieces if piece.special) == BOS
    assert chat.prompt.count("<think>") == 1 + sum(piece.text == "<think>" for piece in chat.pieces)
    back = text_of_tokens(json.dumps({"tokens": chat.tokens}).encode())
    assert not isinstance(back, RejectedRequest) and back.prompt == chat.prompt
