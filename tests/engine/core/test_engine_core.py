from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backend import (
    ConstraintHandle,
    ConstraintRefusedError,
    EngineError,
    EngineRequest,
    RequestRefusedError,
)
from engine.config import ConfigError, EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.sequence_output import SequenceOutput
from recipe.stream.inference import InferenceFinishReason
from tests.engine.fake_runner import (
    EOS,
    VOCAB_SIZE,
    AheadRunner,
    FakeRunner,
    expected_completion,
    make_core,
    make_request,
)


def run(core: EngineCore, requests: Iterable[EngineRequest]) -> dict[str, SequenceOutput]:
    """Add all, run to rest: one output a request, its steps put together."""
    for request in requests:
        core.add_request(request)
    results: dict[str, SequenceOutput] = {}
    while core.has_work:
        for output in core.step():
            if output.sequence.request_id in results:
                results[output.sequence.request_id].extend(output)
            else:
                results[output.sequence.request_id] = output
    core.check_integrity()
    return results


def test_a_mixed_batch_gives_what_lone_runs_give() -> None:
    random = Random(0)
    requests = [
        make_request(
            f"r{i}", [random.randrange(4) for _ in range(random.randrange(1, 70))], seed=i % 3, max_tokens=i + 1
        )
        for i in range(30)
    ]
    results = run(make_core(FakeRunner(num_blocks=200)), requests)
    for request in requests:
        expected = expected_completion(list(request.prompt_token_ids), request.sampling_params)
        assert results[request.request_id].token_ids == expected


@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_random_lives_give_the_tokens_of_lone_runs_and_leave_nothing_behind(data: st.DataObject) -> None:
    """Joins and cancels at any step, few blocks: chunks, prefix hits, preemption all happen, and change nothing."""
    kind = data.draw(st.sampled_from([FakeRunner, AheadRunner]))
    runner = kind(num_blocks=data.draw(st.integers(8, 24)), max_model_len=64)
    core = make_core(
        runner,
        max_num_seqs=data.draw(st.integers(1, 5)),
        max_num_batched_tokens=data.draw(st.integers(5, 40)),
        max_prefill_chunk_tokens=data.draw(st.sampled_from([None, 1, 3, 8])),
        enable_prefix_caching=data.draw(st.booleans()),
        reserved_tokens=data.draw(st.sampled_from([1, 4, 64])),
    )
    limit = core.max_model_len
    prompts = st.lists(st.integers(0, 1), min_size=1, max_size=limit - 1)
    sequences = []
    for index in range(data.draw(st.integers(1, 8))):
        request = make_request(
            f"r{index}",
            data.draw(prompts),
            seed=data.draw(st.integers(0, 1)),
            max_tokens=data.draw(st.integers(1, 30)),
            priority=data.draw(st.integers(0, 1)),
            cache_salt=data.draw(st.sampled_from([b"", b"x"])),
        )
        sequences.append((request, core.add_request(request)))
        for _ in range(data.draw(st.integers(0, 6))):
            core.step()
            core.check_integrity()
        if data.draw(st.integers(0, 4)) == 0:
            core.cancel(data.draw(st.sampled_from(sequences))[1])
    cancelled = [sequence for _, sequence in sequences if sequence.is_finished]
    for _ in range(5_000):
        if not core.has_work:
            break
        core.step()
        core.check_integrity()
    assert not core.has_work
    assert core.blocks.num_free == core.blocks.num_blocks
    for request, sequence in sequences:
        expected = expected_completion(list(request.prompt_token_ids), request.sampling_params, limit)
        tokens = [token for token in sequence.completion_token_ids if token != EOS]
        assert tokens == expected[: len(tokens)]
        assert sequence in cancelled or tokens == expected


def test_the_suite_above_does_preempt_and_does_hit() -> None:
    """Guards the property test against settings under which it would prove nothing."""
    core = make_core(FakeRunner(num_blocks=10, max_model_len=64))
    results = run(core, [make_request(f"r{i}", [1] * 9, seed=i, ignore_eos=True, max_tokens=20) for i in range(4)])
    assert core.scheduler.num_preemptions > 0
    assert all(len(result.token_ids) == 20 for result in results.values())


def test_a_second_run_of_a_prompt_hits_the_cache_and_gives_the_same() -> None:
    core = make_core(FakeRunner())
    first = run(core, [make_request("one", [*range(30)])])["one"]
    second = run(core, [make_request("two", [*range(30)])])["two"]
    assert second.token_ids == first.token_ids
    assert (first.sequence.num_cached_tokens, second.sequence.num_cached_tokens) == (0, 28)
    assert core.stats().cached_prompt_tokens == 28
    core.reset_prefix_cache()
    third = run(core, [make_request("three", [*range(30)])])["three"]
    assert third.sequence.num_cached_tokens == 0


def test_a_follow_up_hits_the_completion_of_the_turn_before() -> None:
    core = make_core(FakeRunner())
    first = run(core, [make_request("one", [*range(10)], ignore_eos=True, max_tokens=10)])["one"]
    prompt = [*range(10), *first.token_ids, 5, 6]
    assert run(core, [make_request("two", prompt)])["two"].sequence.num_cached_tokens == 16


def test_the_admission_is_told_before_the_first_token_of_a_long_prompt() -> None:
    core = make_core(FakeRunner())
    sequence = core.add_request(make_request("a", [1] * 50))
    (output,) = core.step()
    assert output.sequence is sequence and output.is_admission and sequence.scheduled_at is not None
    assert core.step()[-1].token_ids
    assert sequence.first_token_at is not None and sequence.first_token_at >= sequence.scheduled_at


def stop_prompt() -> list[int]:
    """A prompt whose third token is EOS: found by search, as the fake model is a hash."""
    for start in range(VOCAB_SIZE**2):
        prompt = [start % VOCAB_SIZE, start // VOCAB_SIZE]
        if len(expected_completion(prompt, make_request("", prompt, max_tokens=5).sampling_params)) == 2:
            return prompt
    raise AssertionError("no such prompt")


def test_the_stop_token_ends_the_sequence_is_counted_and_not_shown() -> None:
    core = make_core(FakeRunner())
    result = run(core, [make_request("a", stop_prompt(), logprobs=1)])["a"]
    assert result.finish_reason is InferenceFinishReason.Stop
    assert EOS not in result.token_ids
    assert (len(result.token_ids), result.num_hidden_tokens, len(result.logprobs or [])) == (2, 1, 2)
    assert core.stats().completion_tokens == 3
    assert result.sequence.num_completion_tokens == 3


def test_every_one_of_the_models_ends_ends_a_sequence() -> None:
    tokens = expected_completion([1, 2], make_request("", [1, 2], ignore_eos=True).sampling_params)
    ends = (EOS, tokens[3], tokens[5])
    core = EngineCore(FakeRunner(), EngineConfig(max_num_seqs=8, max_num_batched_tokens=32), ends)
    result = run(core, [make_request("a", [1, 2])])["a"]
    first = min(tokens.index(end) for end in ends if end in tokens)
    assert (result.token_ids, result.finish_reason) == (tokens[:first], InferenceFinishReason.Stop)


def test_an_ignored_eos_is_a_token_like_any_other() -> None:
    result = run(make_core(FakeRunner()), [make_request("a", stop_prompt(), ignore_eos=True, max_tokens=6)])["a"]
    assert result.finish_reason is InferenceFinishReason.Length
    assert result.token_ids[2] == EOS and len(result.token_ids) == 6


def test_a_stop_token_before_min_tokens_does_not_end_the_sequence() -> None:
    for min_tokens, shown in ((2, 2), (3, 6)):
        request = make_request("a", stop_prompt(), min_tokens=min_tokens, max_tokens=6)
        assert len(run(make_core(FakeRunner()), [request])["a"].token_ids) == shown


def test_a_request_may_name_its_own_stop_tokens() -> None:
    tokens = run(make_core(FakeRunner()), [make_request("a", [1, 2], ignore_eos=True)])["a"].token_ids
    stop = tokens[4]
    result = run(make_core(FakeRunner()), [make_request("a", [1, 2], ignore_eos=True, stop_token_ids=[stop])])["a"]
    assert result.token_ids == tokens[: tokens.index(stop)]
    assert result.finish_reason is InferenceFinishReason.Stop


def test_the_end_of_the_context_is_a_length_finish() -> None:
    core = make_core(FakeRunner(max_model_len=20))
    result = run(core, [make_request("a", [1] * 15, ignore_eos=True, max_tokens=100)])["a"]
    assert (len(result.token_ids), result.finish_reason) == (5, InferenceFinishReason.Length)


def test_a_context_larger_than_the_kv_cache_is_cut_to_it() -> None:
    core = make_core(FakeRunner(num_blocks=5, max_model_len=1000))
    assert core.max_model_len == 20
    result = run(core, [make_request("a", [1] * 15, ignore_eos=True, max_tokens=100)])["a"]
    assert len(result.token_ids) == 5
    with pytest.raises(ConfigError, match="kv_cache_mib"):
        make_core(FakeRunner(num_blocks=0))


@pytest.mark.parametrize(
    ("request_settings", "message"),
    [
        ({"prompt": []}, "at least one token"),
        ({"prompt": [1] * 128}, "<= 127 tokens. Given: 128"),
        ({"prompt": [VOCAB_SIZE]}, r"token IDs in \[0, 64\)"),
        ({"prompt": [-1]}, r"token IDs in \[0, 64\)"),
        ({"stop_token_ids": [64]}, "stop_token_ids.*Given: 64"),
        ({"logit_bias": {99: 1.0}}, "logit_bias.*Given: 99"),
        ({"bad_words_token_ids": [[1, 70]]}, "bad_words_token_ids.*Given: 70"),
        ({"images": [object()]}, "images"),
        ({"constraint": ConstraintHandle(None)}, "constrained decoding"),
    ],
)
def test_a_request_that_can_never_run_is_refused_at_once(request_settings: dict[str, Any], message: str) -> None:
    core = make_core(FakeRunner())
    prompt = request_settings.pop("prompt", [1])
    with pytest.raises(RequestRefusedError, match=message):
        core.add_request(make_request("a", prompt, **request_settings))
    assert not core.has_work


def test_seeds_are_the_requests_own_or_drawn_repeatably_from_the_engines() -> None:
    def seeds(engine_seed: int | None) -> list[int]:
        core = make_core(FakeRunner(), seed=engine_seed)
        return [core.add_request(make_request("a", [1], seed=seed)).seed for seed in (7, None, None)]

    assert seeds(0) == seeds(0)
    assert seeds(0)[0] == 7 and len(set(seeds(0))) == 3
    assert seeds(0)[1:] != seeds(1)[1:]
    assert seeds(None)[1:] != seeds(None)[1:]
    assert all(0 <= seed < 2**63 for seed in seeds(2**63 - 1))


class FakeMatcher:
    """Gives or raises its answers in turn; with the last one the grammar ends, or runs into a limit if it `fails`."""

    def __init__(self, answers: list[bool | Exception], ends: bool = False, fails: bool = False) -> None:
        self.answers = list(answers)
        self.ends, self.fails = ends, fails

    def accept_token(self, token_id: int) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def accept_forced(self, limit: int, least: int = 1) -> list[int]:
        return []

    def allows_everything(self) -> bool:
        return False

    def fill_bitmask(self, row: Any) -> None: ...

    def rollback(self, num_tokens: int) -> None: ...

    def is_terminated(self) -> bool:
        return self.ends and not self.answers

    def failure(self) -> str:
        return "too many states" if self.fails and not self.answers else ""


class FakeGrammar:
    def __init__(self, answers: list[bool | Exception], ends: bool = False, fails: bool = False) -> None:
        self.answers = answers
        self.ends, self.fails = ends, fails
        self.stop_ids: frozenset[int] = frozenset()

    def new_matcher(self, stop_ids: frozenset[int]) -> FakeMatcher:
        self.stop_ids = stop_ids
        return FakeMatcher(self.answers, self.ends, self.fails)


class FakeFiller:
    def fill(self, matchers: Rows[Any]) -> list[bool]:
        return [matcher is not None for matcher in matchers]


def constrained_core(runner: FakeRunner, filler: FakeFiller | None = None, **settings: Any) -> EngineCore:
    config = EngineConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 32} | settings)
    return EngineCore(runner, config, (EOS,), filler or FakeFiller())


def test_masks_are_made_for_sampling_rows_only_and_only_when_one_is_constrained() -> None:
    runner = FakeRunner()
    core = constrained_core(runner)
    grammar = FakeGrammar([True] * 20)
    core.add_request(make_request("free", [1], max_tokens=5, ignore_eos=True))
    core.add_request(make_request("bound", [1] * 40, max_tokens=2, ignore_eos=True, stop_token_ids=[61],
                                  constraint=ConstraintHandle(grammar)))  # fmt: skip
    while core.has_work:
        core.step()
    assert runner.bitmasks[0] is None, "the constrained prompt does not sample in the first step"
    assert runner.bitmasks[1] == [False, True]
    assert runner.bitmasks[-1] is None
    assert grammar.stop_ids == {61}


@pytest.mark.parametrize("answers", [[True, False], [True, ValueError("broken")]])
def test_a_constraint_that_fails_ends_its_sequence_alone(answers: list[bool | Exception]) -> None:
    core = constrained_core(FakeRunner())
    requests = [
        make_request("bound", [1, 2], ignore_eos=True, constraint=ConstraintHandle(FakeGrammar(answers))),
        make_request("free", [1, 2], ignore_eos=True),
    ]
    results = run(core, requests)
    assert isinstance(results["bound"].error, EngineError)
    assert len(results["free"].token_ids) == 16


@pytest.mark.parametrize("settings", [{"ignore_eos": True}, {"min_tokens": 9}, {"max_tokens": 3}])
def test_a_sequence_ends_with_its_grammar_and_waits_for_no_stop_token(settings: dict[str, Any]) -> None:
    ending = ConstraintHandle(FakeGrammar([True, True, True], ends=True))
    requests = [
        make_request("bound", [1, 2], constraint=ending, **settings),
        make_request("free", [1], ignore_eos=True),
    ]
    results = run(constrained_core(FakeRunner()), requests)
    assert len(results["bound"].token_ids) == 3
    assert results["bound"].finish_reason is InferenceFinishReason.Stop
    assert len(results["free"].token_ids) == 16


def test_a_grammar_that_ended_before_the_first_token_stops_the_sequence() -> None:
    runner = FakeRunner()
    runner.empty_rows_of = {"bound"}
    ended = ConstraintHandle(FakeGrammar([], ends=True))
    results = run(constrained_core(runner), [make_request("bound", [1], ignore_eos=True, constraint=ended)])
    assert results["bound"].finish_reason is InferenceFinishReason.Stop
    assert results["bound"].token_ids == [] and results["bound"].error is None


def test_a_row_that_gives_no_token_ends_its_sequence_alone_and_says_whose_fault_it_is() -> None:
    runner = FakeRunner()
    runner.empty_rows_of = {"numbers", "settings", "limit"}
    sound, limited = FakeGrammar([True] * 20), FakeGrammar([], fails=True)
    results = run(
        constrained_core(runner),
        [
            make_request("numbers", [1], ignore_eos=True),
            make_request("settings", [1], ignore_eos=True, constraint=ConstraintHandle(sound)),
            make_request("limit", [1], ignore_eos=True, constraint=ConstraintHandle(limited)),
            make_request("free", [1], ignore_eos=True),
        ],
    )
    errors = {name: result.error for name, result in results.items()}
    assert type(errors["numbers"]) is EngineError and "logits" in str(errors["numbers"])
    assert type(errors["settings"]) is RequestRefusedError and "other settings" in str(errors["settings"])
    assert type(errors["limit"]) is ConstraintRefusedError and "too many states" in str(errors["limit"])
    assert errors["free"] is None and results["free"].finish_reason is InferenceFinishReason.Length


def test_a_grammar_that_runs_into_a_limit_with_a_token_refuses_the_request_and_not_the_token() -> None:
    limited = ConstraintHandle(FakeGrammar([True, False], fails=True))
    result = run(constrained_core(FakeRunner()), [make_request("a", [1], ignore_eos=True, constraint=limited)])["a"]
    assert type(result.error) is ConstraintRefusedError and "too complex" in str(result.error)


def test_closing_drops_everything_and_closes_the_runner() -> None:
    runner = FakeRunner()
    core = make_core(runner)
    core.add_request(make_request("a", [1]))
    core.step()
    core.close()
    core.check_integrity()
    assert not core.has_work and runner.is_closed and core.blocks.num_used == 0
