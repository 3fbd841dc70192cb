"""A core whose runner is given the next step before the last one is read; its tokens are proved in test_engine_core."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from engine.backend import ConstraintHandle, EngineError
from engine.core.engine_core import EngineCore
from engine.core.scheduler_output import SchedulerOutput
from engine.core.sequence import UNKNOWN_TOKEN
from recipe.stream.inference import InferenceFinishReason
from tests.engine.core.test_engine_core import FakeFiller, FakeGrammar, constrained_core, run, stop_prompt
from tests.engine.fake_runner import AheadRunner, FakeRunner, make_core, make_request


class Recorder(AheadRunner):
    """Writes down the order of its calls."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.calls: list[str] = []

    def launch(self, batch: SchedulerOutput) -> Any:
        self.calls.append("launch")
        return super().launch(batch)

    def sample(self, forward: Any, bitmask: Any | None) -> Any:
        self.calls.append("sample")
        return super().sample(forward, bitmask)

    def read(self, pending: Any) -> Any:
        self.calls.append("read")
        return super().read(pending)


def endless(name: str, max_tokens: int = 16, **settings: Any) -> Any:
    return make_request(name, [1, 2], ignore_eos=True, max_tokens=max_tokens, **settings)


def test_a_step_is_launched_before_the_last_one_is_read_and_sampled_after_it() -> None:
    runner = Recorder()
    core = make_core(runner)
    run(core, [endless("a", max_tokens=3)])
    assert runner.calls == ["launch", "sample", "launch", "read", "sample", "launch", "read", "sample", "read"]
    assert runner.num_taken_ahead == 2


def test_tokens_come_one_step_late_and_the_last_one_needs_no_step_of_its_own() -> None:
    core = make_core(AheadRunner())
    core.add_request(endless("a", max_tokens=2))
    outputs = [[output.token_ids for output in core.step()] for _ in range(3)]
    assert [len(tokens) for step in outputs for tokens in step if tokens] == [1, 1]
    assert not core.has_work


def test_what_is_drawn_behind_a_stop_token_is_dropped() -> None:
    runner = AheadRunner()
    prompt = stop_prompt()
    results = run(make_core(runner), [make_request("a", prompt, max_tokens=9), endless("b")])
    lone = run(make_core(FakeRunner()), [make_request("a", prompt, max_tokens=9)])["a"]
    assert results["a"].token_ids == lone.token_ids
    assert results["a"].finish_reason is InferenceFinishReason.Stop
    assert sum(name == "a" for batch in runner.batches for name, *_ in batch) == len(lone.token_ids) + 2


def test_masks_are_filled_after_the_matchers_have_followed_the_last_tokens() -> None:
    followed: list[int] = []

    class Filler(FakeFiller):
        def fill(self, matchers: Any) -> Any:
            assert threading.current_thread() is threading.main_thread(), "no sooner than the tokens were read"
            followed.append(len(matchers[0].answers) if matchers[0] else -1)
            return super().fill(matchers)

    core = constrained_core(AheadRunner(), Filler())
    run(core, [endless("bound", max_tokens=4, constraint=ConstraintHandle(FakeGrammar([True] * 4)))])
    assert followed == [4, 3, 2, 1]


def test_a_grammar_that_fails_or_an_empty_mask_ends_its_sequence_alone() -> None:
    runner = AheadRunner()
    runner.empty_rows_of = {"empty"}
    broken = ConstraintHandle(FakeGrammar([True, False]))
    results = run(constrained_core(runner), [endless("bound", constraint=broken), endless("empty"), endless("free")])
    assert isinstance(results["bound"].error, EngineError)
    assert isinstance(results["empty"].error, EngineError)
    assert len(results["free"].token_ids) == 16


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_a_cancelled_sequence_keeps_the_tokens_that_were_read(num_steps: int) -> None:
    core: EngineCore = make_core(AheadRunner())
    sequence = core.add_request(endless("a"))
    for _ in range(num_steps):
        core.step()
    core.cancel(sequence)
    core.check_integrity()
    assert len(sequence.completion_token_ids) == num_steps - 1
    assert UNKNOWN_TOKEN not in sequence.token_ids
    assert run(core, [endless("b")])["b"].finish_reason is InferenceFinishReason.Length


def test_sequences_are_preempted_while_their_tokens_are_under_way_and_lose_none() -> None:
    core = make_core(AheadRunner(num_blocks=10, max_model_len=64))
    requests = [make_request(f"r{i}", [1] * 9, seed=i, ignore_eos=True, max_tokens=20) for i in range(4)]
    lone = {request.request_id: run(make_core(FakeRunner()), [request]) for request in requests}
    results = run(core, requests)
    assert core.scheduler.num_preemptions > 0
    for name, result in results.items():
        assert result.token_ids == lone[name][name].token_ids
