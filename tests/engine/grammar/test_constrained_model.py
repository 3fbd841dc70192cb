"""Constrained decoding on the embedded model: whatever is drawn, what has finished is valid."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.backend import EngineRequest
from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.runner import Runner
from engine.core.sampling_params import SamplingParams
from engine.grammar.bitmask import BitmaskFiller
from engine.grammar.vocabulary import Vocabulary
from engine.runner.load import load_runner
from engine.runner.weights.model_files import ModelFiles
from recipe.request import OutputConstraint
from recipe.stream.inference import InferenceFinishReason
from scripts.bench_constrained import Model, prove

STOP, LENGTH = InferenceFinishReason.Stop, InferenceFinishReason.Length
PERSON = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "scores": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9999}, "maxItems": 4},
    },
    "required": ["age", "scores"],
    "additionalProperties": False,
}
PERSON_JSON = OutputConstraint("json", json.dumps(PERSON))
WORDY = OutputConstraint("regex", "(I am|You are) an assistant that answers questions in as many words as [0-9]{2}")


@pytest.fixture(scope="module")
def runner(smollm2_files: ModelFiles) -> Iterator[Runner]:
    config = EngineConfig(max_model_len=512, max_num_seqs=16, kv_cache_mib=128, num_threads=1)
    runner = load_runner(smollm2_files, config)
    yield runner
    runner.close()


def model_of(runner: Runner, vocabulary: Vocabulary, num_blocks: int | None = None) -> Model:
    """A core over the runner, of whose blocks it may know fewer than there are."""
    config = EngineConfig(max_model_len=512, max_num_seqs=16, enable_prefix_caching=False, reserved_tokens=1)
    core = EngineCore(_Limited(runner, num_blocks or runner.num_blocks), config, [2], BitmaskFiller(runner.vocab_size))
    return Model(core, vocabulary)


class _Limited:
    """A runner with fewer blocks; it outlives its cores."""

    def __init__(self, runner: Runner, num_blocks: int) -> None:
        self._runner = runner
        self.num_blocks = num_blocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def generate(
    model: Model, constraint: OutputConstraint | None, count: int = 1, **settings: Any
) -> list[tuple[str, InferenceFinishReason | Exception]]:
    """The texts of `count` requests in one batch, and how each ended."""
    handle = None if constraint is None else model.compile(constraint)
    tokens: dict[str, list[int]] = {}
    ends: dict[str, Any] = {}
    for number in range(count):
        params = SamplingParams(**({"max_tokens": 90, "temperature": 1.0, "seed": number} | settings))
        tokens[str(number)] = []
        model.core.add_request(EngineRequest(str(number), model.prompt("Who are you?"), params, handle))
    while model.core.has_work:
        for output in model.core.step():
            name = output.sequence.request_id
            tokens[name] += output.token_ids
            if output.is_last:
                ends[name] = output.error or output.finish_reason
    return [(model.text(tokens[name]), ends[name]) for name in tokens]


def assert_person(text: str) -> None:
    person = json.loads(text)
    assert list(person) == ["age", "scores"] and type(person["age"]) is int
    assert all(type(score) is int for score in person["scores"])


def test_everything_that_finishes_is_valid_in_a_batch_of_all_kinds(runner: Runner, smollm2: Vocabulary) -> None:
    """`scripts/bench_constrained.py --prove 300` is the long form."""
    proof = prove(model_of(runner, smollm2), num_requests=60, num_schemas=40, max_tokens=64)
    assert proof.failures == []
    assert proof.finished["json"] >= 12 and proof.finished["regex"] == 12 and proof.finished["tool"] >= 4
    assert proof.finished.total() + proof.cut.total() == 60


def test_sequences_that_are_preempted_go_on_in_their_grammars(runner: Runner, smollm2: Vocabulary) -> None:
    model = model_of(runner, smollm2, num_blocks=9)
    results = generate(model, PERSON_JSON, count=6)
    assert model.core.stats().preemptions > 0
    assert [end for _, end in results] == [STOP] * 6
    for text, _ in results:
        assert_person(text)


def test_tokens_that_are_forced_save_steps_and_change_nothing(runner: Runner, smollm2: Vocabulary) -> None:
    texts: dict[bool, Any] = {}
    steps: dict[bool, int] = {}
    for is_taken in (True, False):
        model = model_of(runner, smollm2)
        model.core.scheduler.takes_forced_tokens = is_taken
        texts[is_taken] = [generate(model, constraint, count=3) for constraint in (PERSON_JSON, WORDY)]
        steps[is_taken] = model.core.stats().steps
    assert texts[True] == texts[False]
    assert steps[True] <= steps[False] - 14


def test_whitespace_cannot_fill_the_answer_however_much_the_model_wants_it(runner: Runner, smollm2: Vocabulary) -> None:
    blanks = [token for text in (b" ", b"\n", b"  ", b"\n\n", b"\t") for token in smollm2.encode(text)]
    two = {"type": "object", "properties": {name: {"type": "boolean"} for name in "ab"}, "required": ["a", "b"],
           "additionalProperties": False}  # fmt: skip
    bias = dict.fromkeys(blanks, 100.0)
    constraint = OutputConstraint("json", json.dumps(two))
    ((text, end),) = generate(model_of(runner, smollm2), constraint, logit_bias=bias, max_tokens=260)
    assert end is STOP and json.loads(text).keys() == {"a", "b"}
    assert text.count("\n") >= 3, "the bias was felt"


def test_a_model_that_wants_to_end_at_once_still_answers_in_full(runner: Runner, smollm2: Vocabulary) -> None:
    results = generate(model_of(runner, smollm2), PERSON_JSON, count=4, logit_bias={2: 100.0})
    for text, end in results:
        assert end is STOP
        assert_person(text)


def test_a_stop_token_in_the_middle_of_json_does_not_stop_it(runner: Runner, smollm2: Vocabulary) -> None:
    (digit,) = smollm2.encode(b"1")
    settings = {"stop_token_ids": [digit], "logit_bias": {digit: 50.0}}
    results = generate(model_of(runner, smollm2), PERSON_JSON, count=4, **settings)
    for text, end in results:
        assert end is STOP and "1" not in text
        assert_person(text)


@pytest.mark.parametrize("settings", [{"min_tokens": 50}, {"ignore_eos": True}, {}])
def test_an_output_ends_with_its_grammar_whatever_else_was_asked(
    runner: Runner, smollm2: Vocabulary, settings: dict[str, Any]
) -> None:
    pattern = OutputConstraint("regex", "[0-9]{3}-[a-f]{2}")
    ((text, end),) = generate(model_of(runner, smollm2), pattern, **settings)
    assert re.fullmatch(pattern.schema, text) and end is STOP


def test_a_grammar_that_only_may_end_goes_on_until_min_tokens(runner: Runner, smollm2: Vocabulary) -> None:
    ((text, end),) = generate(
        model_of(runner, smollm2), OutputConstraint("regex", "[a-z ]+"), min_tokens=20, max_tokens=40,
        logit_bias={2: 100.0},
    )  # fmt: skip
    assert end is STOP and len(smollm2.encode(text.encode())) >= 15 and re.fullmatch("[a-z ]+", text)


def test_a_grammar_that_no_token_can_follow_fails_its_sequence_alone(runner: Runner, smollm2: Vocabulary) -> None:
    model = model_of(runner, smollm2)
    (digit,) = smollm2.encode(b"7")
    handle = model.compile(OutputConstraint("regex", "7+x"))
    params = SamplingParams(max_tokens=8, bad_words_token_ids=[[digit]], seed=1)
    model.core.add_request(EngineRequest("stuck", model.prompt("Hi"), params, handle))
    model.core.add_request(EngineRequest("free", model.prompt("Hi"), SamplingParams(max_tokens=8, ignore_eos=True)))
    ends = {}
    while model.core.has_work:
        ends |= {output.sequence.request_id: output for output in model.core.step() if output.is_last}
    assert "allows no further token" in str(ends["stuck"].error)
    assert ends["free"].finish_reason is LENGTH


def test_masks_leave_the_logits_of_unconstrained_rows_bit_for_bit_as_they_are(
    runner: Runner, smollm2: Vocabulary
) -> None:
    from engine.runner.logit_edits import mask_disallowed

    matcher = model_of(runner, smollm2).compile(PERSON_JSON).payload.new_matcher(frozenset([2]))
    logits = torch.randn(3, runner.vocab_size, generator=torch.Generator().manual_seed(5))
    before = logits.clone()
    mask_disallowed(logits, BitmaskFiller(runner.vocab_size).fill([None, matcher, None]))
    assert torch.equal(logits[0], before[0]) and torch.equal(logits[2], before[2])
    assert logits[1].isfinite().sum() < 100
