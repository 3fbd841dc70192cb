"""The masks of a step: filled beside its forward pass, for the batch that is sampled, and by one thread at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence as Rows
from typing import Any

import pytest

from engine.backend import ConstraintHandle
from engine.core.runner import OutOfMemoryError
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import Sequence
from engine.core.step_masks import StepMasks
from tests.engine.core.test_engine_core import FakeFiller, FakeGrammar, FakeMatcher, constrained_core, run
from tests.engine.fake_runner import AheadRunner, FakeRunner, make_request

WAIT_S = 30.0


class Free(FakeMatcher):
    def allows_everything(self) -> bool:
        return True


class FreeGrammar(FakeGrammar):
    def new_matcher(self, stop_ids: frozenset[int]) -> FakeMatcher:
        return Free(self.answers)


class Filler(FakeFiller):
    """Notes how many fills run at once and in which threads."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.threads: list[threading.Thread] = []
        self.most_at_once = self._now = 0
        self.hold: threading.Event | None = None

    def fill(self, matchers: Rows[Any]) -> list[bool]:
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        self.threads.append(threading.current_thread())
        self.begun.set()
        if self.hold is not None:
            self.hold.wait(WAIT_S)
        self._now -= 1
        return super().fill(matchers)


def bound(name: str, max_tokens: int = 4, **settings: Any) -> Any:
    grammar = ConstraintHandle(FakeGrammar([True] * max_tokens))
    return make_request(name, [1, 2], ignore_eos=True, max_tokens=max_tokens, constraint=grammar, **settings)


def test_masks_are_filled_while_the_forward_pass_runs() -> None:
    filler, overlaps = Filler(), []

    class Blocking(FakeRunner):
        def launch(self, batch: SchedulerOutput) -> Any:
            overlaps.append(filler.begun.wait(WAIT_S))
            filler.begun.clear()
            return super().launch(batch)

    runner = Blocking()
    core = constrained_core(runner, filler)
    assert len(run(core, [bound("a")])["a"].token_ids) == 4
    assert overlaps == [True] * 4 and runner.bitmasks == [[True]] * 4
    assert threading.current_thread() not in filler.threads
    core.close()
    assert not any(thread.is_alive() for thread in filler.threads)


def test_a_step_is_not_sampled_before_its_masks_are_there() -> None:
    filler = Filler()
    filler.hold = threading.Event()
    core = constrained_core(FakeRunner(), filler)
    core.add_request(bound("a"))
    threading.Timer(0.05, filler.hold.set).start()
    core.step()
    assert filler.hold.is_set() and core.runner.bitmasks == [[True]]  # type: ignore[attr-defined]


def test_a_batch_that_is_launched_again_without_some_rows_gets_the_masks_of_what_is_left() -> None:
    filler = Filler()

    class Short(FakeRunner):
        failures = 2

        def launch(self, batch: SchedulerOutput) -> Any:
            if len(batch.scheduled) > 1 and self.failures:
                self.failures -= 1
                raise OutOfMemoryError("short of memory")
            return super().launch(batch)

    runner = Short()
    core = constrained_core(runner, filler)
    results = run(core, [bound("a"), make_request("b", [1], max_tokens=4, ignore_eos=True), bound("c"), bound("d")])
    assert {name: len(result.token_ids) for name, result in results.items()} == dict.fromkeys("abcd", 4)
    assert runner.bitmasks[0] == [True] and filler.most_at_once == 1
    assert [len(mask) for mask in runner.bitmasks if mask] == [
        sum(samples for *_, samples in batch)
        for batch, mask in zip(runner.batches, runner.bitmasks, strict=True)
        if mask
    ]


def test_masks_that_were_begun_for_another_batch_are_not_taken_for_these() -> None:
    masks = StepMasks(FakeFiller())
    one, two = (SchedulerOutput([_row(name) for name in names]) for names in (["a"], ["a", "b"]))
    masks.begin(one)
    assert masks.of(two) == [True, True]
    masks.begin(one)
    assert masks.of(one) == [True]
    masks.close()


def _row(name: str) -> ScheduledSequence:
    matcher = FakeMatcher([])
    sequence = Sequence(name, [1], 1, SamplingParams(), 0, frozenset(), 9, 0, matcher=matcher)
    return ScheduledSequence(sequence, 0, 1, samples=True)


@pytest.mark.parametrize("kind", [FakeRunner, AheadRunner])
def test_rows_that_allow_everything_need_no_mask(kind: type[FakeRunner]) -> None:
    runner = kind()
    free = ConstraintHandle(FreeGrammar([True] * 3))
    core = constrained_core(runner)
    run(core, [make_request("free", [1], max_tokens=3, ignore_eos=True, constraint=free)])
    assert runner.bitmasks == [None] * 3
    run(core, [bound("a", 1), make_request("free", [1], max_tokens=1, ignore_eos=True, constraint=free)])
    assert runner.bitmasks[-1] == [True, False]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not let threads choose their CPUs")
def test_the_thread_is_not_tied_to_the_cpu_of_the_thread_that_computes() -> None:
    seen: list[set[int]] = []

    class Watching(FakeFiller):
        def fill(self, matchers: Rows[Any]) -> list[bool]:
            seen.append(os.sched_getaffinity(0))
            return super().fill(matchers)

    def compute() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        run(constrained_core(FakeRunner(), Watching()), [bound("a")])

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert seen == [os.sched_getaffinity(0)] * 4


@pytest.mark.parametrize("kind", [FakeRunner, AheadRunner])
def test_what_goes_wrong_with_the_masks_comes_out_of_the_step(kind: type[FakeRunner]) -> None:
    class Broken(FakeFiller):
        def fill(self, matchers: Rows[Any]) -> list[bool]:
            raise ZeroDivisionError("broken")

    core = constrained_core(kind(), Broken())
    core.add_request(bound("a"))
    with pytest.raises(ZeroDivisionError):
        core.step()
    core.close()


def test_a_forward_pass_that_fails_is_raised_as_it_is_and_leaves_no_fill_behind() -> None:
    filler = Filler()

    class Broken(FakeRunner):
        def launch(self, batch: SchedulerOutput) -> Any:
            raise RuntimeError("the device fell over")

    core = constrained_core(Broken(), filler)
    core.add_request(bound("a"))
    with pytest.raises(RuntimeError, match="fell over"):
        core.step()
    core.close()
    assert len(filler.threads) == 1 and not filler.threads[0].is_alive()
