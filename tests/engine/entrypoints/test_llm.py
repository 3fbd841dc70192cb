"""The offline door over a small model with random weights: what callers expect of it, and how runs end."""

from __future__ import annotations

import gc
import json
import shutil
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from engine import LLM, SamplingParams
from engine.backend import RequestRefusedError
from engine.core import sampling_params as core
from tests.engine.entrypoints.small_llm import GREEDY, PROMPTS, SETTINGS, generate, save_model
from tests.engine.runner.small_models import make_reference


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    return make_reference()


@pytest.fixture(scope="module")
def folder(reference: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(reference, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), **SETTINGS) as llm:
        yield llm


@pytest.fixture
def llm(shared: LLM) -> Iterator[LLM]:
    """The shared engine, without KV of earlier tests, which must be at rest and whole after each."""
    shared.reset_prefix_cache()
    yield shared
    engine = shared._live_core()
    engine.check_integrity()
    assert not engine.has_work and engine.blocks.num_used == 0


def greedy_by_transformers(reference: LlamaForCausalLM, prompt: list[int], max_tokens: int) -> list[int]:
    given = torch.tensor([prompt])
    output = reference.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=max_tokens, min_new_tokens=max_tokens,
        do_sample=False, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return list(output[0, len(prompt) :].tolist())


def test_completions_are_those_of_transformers_in_the_order_of_the_prompts(
    llm: LLM, reference: LlamaForCausalLM
) -> None:
    outputs = generate(llm, PROMPTS, SamplingParams(max_tokens=12, **GREEDY))
    assert [output.prompt_token_ids for output in outputs] == PROMPTS
    for output in outputs:
        (completion,) = output.outputs
        assert completion.token_ids == greedy_by_transformers(reference, output.prompt_token_ids, 12)
        assert completion.text == llm.get_tokenizer().inner.decode(completion.token_ids, skip_special_tokens=True)
        assert (completion.finish_reason, completion.stop_reason) == ("length", None)


def test_texts_and_token_ids_may_be_mixed_and_a_single_prompt_stands_for_itself(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, **GREEDY)
    ids = llm.get_tokenizer().encode("hello")
    mixed = generate(llm, ["hello", ids], params)
    assert [output.prompt for output in mixed] == ["hello", None]
    assert mixed[0].prompt_token_ids == mixed[1].prompt_token_ids == ids
    for alone in (generate(llm, "hello", params), generate(llm, ids, params)):
        assert [output.outputs[0].token_ids for output in alone] == [mixed[0].outputs[0].token_ids]
    assert generate(llm, [], params) == []


def test_texts_begin_with_the_bos_token_of_a_model_that_was_trained_with_it(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "add_bos_token": True}))
    with LLM(tmp_path, **SETTINGS) as llm:
        ids = llm.get_tokenizer().encode("hello")
        prompts = ["hello", "<|im_start|>hello", ids]
        assert [output.prompt_token_ids for output in generate(llm, prompts)] == [[1, *ids], [1, *ids], ids]


def test_prompts_may_come_as_objects_and_as_any_kind_of_integers(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, **GREEDY)
    ids = llm.get_tokenizer().encode("hello")
    forms: list[Any] = ["hello", {"prompt": "hello"}, {"prompt_token_ids": ids}, np.array(ids), tuple(ids)]
    outputs = generate(llm, forms, params)
    assert all(output.prompt_token_ids == ids for output in outputs)
    for form in forms:
        assert generate(llm, form, params)[0].outputs == outputs[0].outputs


@pytest.mark.parametrize("wrong", [None, 1.5, {"text": "x"}, [1.5], ["a", "b"]])
def test_a_prompt_of_another_kind_is_refused_by_its_number(llm: LLM, wrong: Any) -> None:
    with pytest.raises(RequestRefusedError, match="prompt 1 must be a text or a list of token IDs"):
        generate(llm, ["a", wrong])


def test_every_request_has_an_id_of_its_own(llm: LLM) -> None:
    outputs = [*generate(llm, PROMPTS), *generate(llm, PROMPTS)]
    assert len({output.request_id for output in outputs}) == 8


def test_settings_are_one_for_all_or_one_for_each(llm: LLM) -> None:
    each = [SamplingParams(max_tokens=number, **GREEDY) for number in (1, 2, 3, 4)]
    assert [len(output.outputs[0].token_ids) for output in generate(llm, PROMPTS, each)] == [1, 2, 3, 4]
    assert len(generate(llm, [7], core.SamplingParams(max_tokens=3, **GREEDY))[0].outputs[0].token_ids) == 3
    with pytest.raises(RequestRefusedError, match="3 sampling_params for 4 prompts"):
        generate(llm, PROMPTS, each[:3])


def test_without_settings_the_models_own_defaults_apply(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = llm._live_core()
    asked: list[core.SamplingParams] = []
    add = engine.add_request
    monkeypatch.setattr(engine, "add_request", lambda request: (asked.append(request.sampling_params), add(request))[1])
    generate(llm, [7])
    assert asked == [llm.get_default_sampling_params()] == [SamplingParams(temperature=0.5, top_k=7)]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_stop_string_ends_the_text_before_it_and_frees_the_sequence(llm: LLM, length: int) -> None:
    whole = generate(llm, [7], SamplingParams(max_tokens=60, **GREEDY))[0].outputs[0]
    stop = whole.text[20 : 20 + length]
    written = llm._live_core().stats().completion_tokens
    stopped = generate(llm, [7], SamplingParams(max_tokens=60, stop=["never said", stop], **GREEDY))[0].outputs[0]
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    assert len(stopped.token_ids) < 60
    assert llm._live_core().stats().completion_tokens - written == len(stopped.token_ids)


def test_a_stop_token_is_no_part_of_the_output_and_named_when_the_request_asked_for_it(llm: LLM) -> None:
    ids = generate(llm, [7], SamplingParams(max_tokens=20, **GREEDY))[0].outputs[0].token_ids
    params = SamplingParams(max_tokens=20, stop_token_ids=[ids[9]], logprobs=0, **GREEDY)
    stopped = generate(llm, [7], params)[0].outputs[0]
    assert stopped.token_ids == ids[: ids.index(ids[9])]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", ids[9])
    assert len(stopped.logprobs) == len(stopped.token_ids)


def test_a_bad_word_is_not_in_the_text(llm: LLM) -> None:
    whole = generate(llm, [7], SamplingParams(max_tokens=20, **GREEDY))[0].outputs[0]
    word = llm.get_tokenizer().token_bytes(whole.token_ids[5]).decode()
    without = generate(llm, [7], SamplingParams(max_tokens=20, bad_words=[word], **GREEDY))[0].outputs[0]
    assert word in whole.text and whole.token_ids[5] not in without.token_ids


def test_logprobs_hold_the_chosen_token_and_the_best_alternatives(llm: LLM, reference: LlamaForCausalLM) -> None:
    params = SamplingParams(max_tokens=5, logprobs=3, temperature=2.0, seed=4, ignore_eos=True)
    output = generate(llm, PROMPTS[0], params)[0]
    completion = output.outputs[0]
    tokens = torch.tensor([output.prompt_token_ids + completion.token_ids])
    with torch.inference_mode():
        expected = reference(tokens).logits[0].log_softmax(dim=-1)
    total = 0.0
    for place, (token_id, candidates) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
        row = expected[len(output.prompt_token_ids) - 1 + place]
        best = row.topk(3).indices.tolist()
        assert [key for key, found in candidates.items() if found.rank] == best
        assert [found.rank for found in candidates.values()][:3] == [1, 2, 3]
        assert set(candidates) == {*best, token_id}
        for key, found in candidates.items():
            assert found.logprob == pytest.approx(float(row[key]), abs=1e-4)
            assert found.decoded_token == llm.get_tokenizer().token_bytes(key).decode()
        total += candidates[token_id].logprob
    assert completion.cumulative_logprob == pytest.approx(total)


def test_without_decoding_there_are_token_ids_only_and_no_tokenizer_is_loaded(folder: Path) -> None:
    with LLM(folder, decode_sequence=False, **SETTINGS) as llm:
        (output,) = generate(llm, [7], SamplingParams(max_tokens=5, **GREEDY))
        assert (output.outputs[0].text, len(output.outputs[0].token_ids)) == ("", 5)
        assert "_tokenizer" not in vars(llm)
        with pytest.raises(RequestRefusedError, match="decode_sequence"):
            generate(llm, [7], SamplingParams(stop="x"))


def test_a_prompt_is_the_callers_own_and_a_message_is_ordinary_text(llm: LLM) -> None:
    params = SamplingParams(max_tokens=1)
    assert generate(llm, "a<|im_end|>", params)[0].prompt_token_ids[-1] == 2
    message = [{"role": "user", "content": "a<|im_end|>"}]
    (answer,) = llm.chat(message, params, use_tqdm=False)
    assert 2 not in answer.prompt_token_ids
    assert llm.get_tokenizer().inner.decode(answer.prompt_token_ids) == "a<|im_end|>"


def test_a_chat_takes_one_conversation_or_many_and_names_the_one_it_refuses(llm: LLM) -> None:
    talks = [[{"role": "user", "content": text}] for text in ("ab", "cde")]
    params = SamplingParams(max_tokens=3, **GREEDY)
    both = llm.chat(talks, params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in both] == [3, 3]
    alone = llm.chat(talks[1], params, use_tqdm=False)
    assert [output.prompt_token_ids for output in alone] == [both[1].prompt_token_ids]
    with pytest.raises(RequestRefusedError, match=r"conversation 1: .*role"):
        llm.chat([talks[0], [{"role": "nobody", "content": "x"}]], use_tqdm=False)


def test_an_answer_may_be_bound_to_a_schema_and_sampling_is_no_option_of_a_prompt(llm: LLM) -> None:
    talk = [{"role": "user", "content": "ab"}]
    on = {"on": {"type": "boolean"}}
    schema = {"type": "object", "properties": on, "required": ["on"], "additionalProperties": False}
    bound = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    params = SamplingParams(max_tokens=100, temperature=2.0)
    (answer,) = llm.chat(talk, params, chat_options=bound, use_tqdm=False)
    assert answer.outputs[0].finish_reason == "stop"
    assert isinstance(json.loads(answer.outputs[0].text)["on"], bool)
    with pytest.raises(RequestRefusedError, match=r"conversation 0: temperature is no option .*SamplingParams"):
        llm.chat(talk, chat_options={"temperature": 0.5}, use_tqdm=False)


def test_prompts_that_can_never_run_are_refused_by_their_number_before_anything_has_run(llm: LLM) -> None:
    steps = llm._live_core().stats().steps
    for prompts, reason in (
        ([[7], [1] * 256], "prompt 1: the prompt must hold <= 255 tokens. Given: 256"),
        ([[7], []], "prompt 1: .*at least one token"),
        ([[7], [7], [160]], r"prompt 2: .*token IDs in \[0, 160\)"),
    ):
        with pytest.raises(RequestRefusedError, match=reason):
            generate(llm, prompts)
    assert llm._live_core().stats().steps == steps


def test_a_second_prompt_with_the_same_beginning_reports_its_cache_hits(llm: LLM) -> None:
    hits = [generate(llm, PROMPTS[3], SamplingParams(max_tokens=1))[0].num_cached_tokens for _ in range(2)]
    assert hits == [0, 64]


def test_an_interrupted_run_leaves_the_engine_at_rest_and_usable(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=5, **GREEDY)
    before = generate(llm, PROMPTS, params)
    runner = llm._live_core().runner

    def interrupt(pending: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner, "read", interrupt)
        with pytest.raises(KeyboardInterrupt):
            generate(llm, PROMPTS, params)
    llm._live_core().check_integrity()
    assert llm._live_core().blocks.num_used == 0
    assert [output.outputs for output in generate(llm, PROMPTS, params)] == [output.outputs for output in before]


def test_memory_does_not_grow_with_the_requests_served(llm: LLM) -> None:
    """The long form is `scripts/bench_offline.py --sequences 10000`, which prints the process's size."""

    def serve(rounds: int) -> None:
        for index in range(rounds):
            prompts = [[3 + (index * 100 + place) % 150, 4, 5] for place in range(100)]
            generate(llm, prompts, SamplingParams(max_tokens=3, repetition_penalty=1.1, logprobs=1))

    serve(2)
    tracemalloc.start()
    try:
        serve(1)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        serve(6)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()


def test_draws_do_not_depend_on_who_else_is_in_the_batch(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=9, seed=place, temperature=1.5, top_p=0.9) for place in range(4)]
    together = [output.outputs[0].token_ids for output in generate(llm, PROMPTS, params)]
    backwards = [output.outputs[0].token_ids for output in generate(llm, PROMPTS[::-1], params[::-1])]
    alone = [generate(llm, p, s)[0].outputs[0].token_ids for p, s in zip(PROMPTS, params, strict=True)]
    assert together == backwards[::-1] == alone
    assert all(one != other for one, other in pairwise(together))
