"""Tokens that a grammar leaves no choice about: appended without a draw, computed with the next one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backend import ConstraintHandle, EngineError
from engine.core.sequence_output import SequenceOutput
from recipe.stream.inference import InferenceFinishReason
from tests.engine.core.test_engine_core import FakeFiller, FakeMatcher, constrained_core, run
from tests.engine.fake_runner import AheadRunner, FakeRunner, make_request, next_token


def forced_behind(token_id: int) -> list[int]:
    """What the grammar of these tests forces behind a token: much, little or nothing."""
    return [(token_id + step) % 7 for step in range(token_id % 8 * 3)] if token_id % 2 else []


class ForcingMatcher(FakeMatcher):
    """Accepts everything, and forces tokens behind every drawn one; ends once it has seen `ends_at` tokens."""

    def __init__(self, ends_at: int = 10**9) -> None:
        super().__init__([])
        self._due: list[int] = []
        self._left = ends_at

    def accept_token(self, token_id: int) -> bool:
        if self._due:
            if token_id != self._due.pop(0):
                return False
        else:
            self._due = forced_behind(token_id)
        self._left -= 1
        return True

    def accept_forced(self, limit: int, least: int = 1) -> list[int]:
        if len(self._due[:limit]) < least:
            return []
        taken, self._due = self._due[:limit], self._due[limit:]
        self._left -= len(taken)
        return taken

    def is_terminated(self) -> bool:
        return self._left <= 0


class ForcingGrammar:
    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def new_matcher(self, stop_ids: frozenset[int]) -> ForcingMatcher:
        return ForcingMatcher(**self.settings)


class ForcedRunner(FakeRunner):
    """Draws only what the masks allow: where a token is forced, that."""

    def _draw(self, item: Any) -> Any:
        drawn = super()._draw(item)
        due = item.sequence.matcher._due if item.sequence.matcher is not None else []
        return type(drawn)(due[0], drawn.logprobs) if due else drawn


def lone_run(prompt: list[int], seed: int, max_tokens: int, limit: int, is_forced: bool = True) -> list[int]:
    """The same draws and forced tokens, one after the other."""
    tokens, due = list(prompt), list[int]()
    while len(tokens) < min(len(prompt) + max_tokens, limit):
        if due:
            tokens.append(due.pop(0))
        else:
            tokens.append(next_token([*tokens], seed))
            due = forced_behind(tokens[-1]) if is_forced else []
    return tokens[len(prompt) :]


def forcing(name: str, prompt: list[int], **settings: Any) -> Any:
    grammar = ConstraintHandle(ForcingGrammar(**settings.pop("grammar", {})))
    return make_request(name, prompt, ignore_eos=True, constraint=grammar, **settings)


ENDLESS: dict[Any, dict[str, bool]] = {forcing: {}, make_request: {"ignore_eos": True}}


def test_forced_tokens_come_with_the_drawn_one_and_cost_no_step_of_their_own() -> None:
    runner = ForcedRunner()
    core = constrained_core(runner)
    sequence = core.add_request(forcing("a", [1, 2], max_tokens=60))
    outputs: list[SequenceOutput] = []
    while core.has_work:
        outputs += [output for output in core.step() if not output.is_admission]
    expected = lone_run([1, 2], 0, 60, core.max_model_len)
    assert sequence.completion_token_ids == expected
    assert [token for output in outputs for token in output.token_ids] == expected
    assert len(outputs) == len(runner.batches) < 40 and max(len(output.token_ids) for output in outputs) == 17
    assert core.stats().completion_tokens == 60 and outputs[-1].finish_reason is InferenceFinishReason.Length


def test_beside_many_sequences_short_forced_runs_are_drawn_and_long_ones_still_come_together() -> None:
    requests = [forcing(f"r{number}", [number, 2], seed=number, max_tokens=60) for number in range(5)]
    core = constrained_core(ForcedRunner())
    lengths: dict[int, set[int]] = {1: set(), 5: set()}
    for together in (requests[:1], requests):
        sequences = [core.add_request(request) for request in together]
        while not any(sequence.is_finished for sequence in sequences):
            for output in core.step():
                if not output.is_admission and output.finish_reason is None:
                    lengths[len(together)].add(len(output.token_ids) - 1)
        while core.has_work:
            core.step()
        for sequence, request in zip(sequences, together, strict=True):
            expected = lone_run(list(request.prompt_token_ids), sequence.seed, 60, core.max_model_len)
            assert sequence.completion_token_ids == expected
    assert 3 in lengths[1], "alone, a run of three comes together"
    assert not lengths[5] & {1, 2, 3} and {0, 9} <= lengths[5]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_random_lives_give_what_lone_runs_give(data: st.DataObject) -> None:
    """Few blocks and small steps: forced runs are cut, preempted and prefilled again, and nothing changes."""
    runner = ForcedRunner(num_blocks=data.draw(st.integers(8, 24)), max_model_len=64)
    max_num_batched_tokens = data.draw(st.integers(4, 40))
    core = constrained_core(
        runner,
        max_num_seqs=data.draw(st.integers(1, 4)),
        max_num_batched_tokens=max_num_batched_tokens,
        max_prefill_chunk_tokens=data.draw(st.sampled_from([None, 1, 3, 8])),
        enable_prefix_caching=data.draw(st.booleans()),
        reserved_tokens=data.draw(st.sampled_from([1, 4])),
    )
    limit, sequences = core.max_model_len, []
    for seed in range(data.draw(st.integers(1, 6))):
        prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=limit - 1))
        make, max_tokens = data.draw(st.sampled_from([forcing, make_request])), data.draw(st.integers(1, 40))
        request = make(f"r{seed}", prompt, seed=seed, max_tokens=max_tokens, **ENDLESS[make])
        expected = lone_run(prompt, seed, max_tokens, limit, is_forced=make is forcing)
        sequences.append((core.add_request(request), expected))
        for _ in range(data.draw(st.integers(0, 4))):
            core.step()
            core.check_integrity()
    for _ in range(5_000):
        if not core.has_work:
            break
        core.step()
        core.check_integrity()
    assert core.blocks.num_free == core.blocks.num_blocks
    assert max(sum(number for _, _, number, _ in batch) for batch in runner.batches) <= max_num_batched_tokens
    assert [sequence.completion_token_ids for sequence, _ in sequences] == [expected for _, expected in sequences]


def test_forced_runs_under_preemption_give_what_lone_runs_give() -> None:
    random = Random(3)
    runner = ForcedRunner(num_blocks=14, max_model_len=56)
    core = constrained_core(runner, max_num_seqs=6, max_num_batched_tokens=12, reserved_tokens=1)
    requests = [forcing(f"r{n}", [random.randrange(3) for _ in range(5 + n)], seed=n, max_tokens=40) for n in range(8)]
    results = run(core, requests)
    assert core.scheduler.num_preemptions > 0
    for request in requests:
        params = request.sampling_params
        expected = lone_run(list(request.prompt_token_ids), params.seed or 0, params.max_tokens, core.max_model_len)
        assert results[request.request_id].token_ids == expected
    assert all(sum(number for _, _, number, _ in batch) <= 12 for batch in runner.batches)


@pytest.mark.parametrize("settings", [{"logprobs": 1}, {"bad_words_token_ids": [[60]]}])
def test_where_every_token_needs_its_logits_none_is_forced(settings: dict[str, Any]) -> None:
    runner = ForcedRunner()
    result = run(constrained_core(runner), [forcing("a", [1, 2], max_tokens=40, **settings)])["a"]
    assert len(runner.batches) == 40
    assert result.token_ids == lone_run([1, 2], 0, 40, 128)
    assert result.logprobs is None or len(result.logprobs) == 40


def test_a_runner_that_runs_ahead_draws_every_token() -> None:
    class Matcher(ForcingMatcher):
        def accept_token(self, token_id: int) -> bool:
            return True

        def accept_forced(self, limit: int, least: int = 1) -> list[int]:
            return [5] * min(limit, 3)

    class Grammar(ForcingGrammar):
        def new_matcher(self, stop_ids: frozenset[int]) -> ForcingMatcher:
            return Matcher()

    runner = AheadRunner()
    request = make_request("a", [1, 2], max_tokens=20, ignore_eos=True, constraint=ConstraintHandle(Grammar()))
    assert len(run(constrained_core(runner), [request])["a"].token_ids) == 20
    assert len(runner.batches) == 20


def test_a_grammar_that_ends_within_a_forced_run_ends_its_sequence_there() -> None:
    expected = lone_run([1, 2], 0, 60, 128)
    first = next(place for place, token in enumerate(expected) if forced_behind(token))
    ends_at = first + 1 + len(forced_behind(expected[first]))
    runner = ForcedRunner()
    result = run(constrained_core(runner), [forcing("a", [1, 2], max_tokens=60, grammar={"ends_at": ends_at})])["a"]
    assert result.token_ids == expected[:ends_at] and result.finish_reason is InferenceFinishReason.Stop
    assert len(runner.batches) == first + 1


def test_what_goes_wrong_with_forced_tokens_ends_the_sequence_alone() -> None:
    class Matcher(ForcingMatcher):
        def accept_forced(self, limit: int, least: int = 1) -> list[int]:
            raise ValueError("broken")

    class Grammar(ForcingGrammar):
        def new_matcher(self, stop_ids: frozenset[int]) -> ForcingMatcher:
            return Matcher()

    broken = make_request("bound", [1], ignore_eos=True, constraint=ConstraintHandle(Grammar()))
    results = run(constrained_core(FakeRunner(), FakeFiller()), [broken, make_request("free", [1], ignore_eos=True)])
    assert isinstance(results["bound"].error, EngineError) and "broken" in str(results["bound"].error)
    assert len(results["free"].token_ids) == 16
