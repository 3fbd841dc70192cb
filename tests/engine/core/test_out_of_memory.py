"""Batches that the device has no memory for: fewer sequences go on, the others are computed later, none is lost."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from engine.backend import EngineError
from engine.core.runner import OutOfMemoryError
from engine.core.scheduler_output import SchedulerOutput
from tests.engine.core.test_engine_core import run, stop_prompt
from tests.engine.fake_runner import AheadRunner, FakeRunner, expected_completion, make_core, make_request


def short_of_memory(
    kind: type[FakeRunner], phase: str, most: int, *, from_batch: int = 0, num_blocks: int = 200
) -> Any:
    """A runner of `kind` whose `phase` has memory for `most` sequences, once `from_batch` batches were computed."""

    class Short(kind):  # type: ignore[valid-type,misc]
        num_failures = 0

        def launch(self, batch: SchedulerOutput) -> Any:
            self.check("launch", len(batch.scheduled))
            return super().launch(batch)

        def sample(self, forward: Any, bitmask: Any | None) -> Any:
            self.check("sample", len(forward))
            return super().sample(forward, bitmask)

        def check(self, name: str, size: int) -> None:
            if name == phase and size > most and len(self.batches) >= from_batch:
                self.num_failures += 1
                raise OutOfMemoryError("tried to allocate 2 GiB")

        def fail_sometimes(self, random: Random, size: int) -> None:
            """Half of the batches of many do not fit, and one in fifty of a single sequence."""
            if random.random() < (0.5 if size > 1 else 0.02):
                self.num_failures += 1
                raise OutOfMemoryError("tried to allocate 2 GiB")

    return Short(num_blocks=num_blocks)


def requests(number: int, **settings: Any) -> list[Any]:
    return [make_request(f"r{i}", [1] * (3 + i), seed=i, max_tokens=4 + i, **settings) for i in range(number)]


@pytest.mark.parametrize("kind", [FakeRunner, AheadRunner])
@pytest.mark.parametrize("phase", ["launch", "sample"])
@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("from_batch", [0, 4])
def test_every_request_gets_its_tokens_though_not_all_fit_at_once(
    kind: type[FakeRunner], phase: str, most: int, from_batch: int
) -> None:
    runner = short_of_memory(kind, phase, most, from_batch=from_batch)
    core = make_core(runner)
    results = run(core, requests(6))
    assert runner.num_failures > 0
    assert core.scheduler.num_preemptions > 0
    for request in requests(6):
        lone = run(make_core(FakeRunner()), [request])[request.request_id]
        assert results[request.request_id].token_ids == lone.token_ids
        assert results[request.request_id].finish_reason is lone.finish_reason


@pytest.mark.parametrize("kind", [FakeRunner, AheadRunner])
@pytest.mark.parametrize("phase", ["launch", "sample"])
def test_a_request_that_does_not_fit_alone_ends_with_an_error_that_is_told_at_once(
    kind: type[FakeRunner], phase: str
) -> None:
    core = make_core(short_of_memory(kind, phase, 0))
    result = run(core, requests(1))["r0"]
    assert isinstance(result.error, EngineError)
    assert "no memory for the request: tried to allocate 2 GiB" in str(result.error)
    assert not core.has_work


@pytest.mark.parametrize("kind", [FakeRunner, AheadRunner])
def test_one_that_cannot_go_on_takes_nobody_with_it(kind: type[FakeRunner]) -> None:
    """Memory that is gone for a while ends the oldest request, with the tokens it had, and no other."""
    runner = short_of_memory(kind, "launch", 0, from_batch=3)
    core = make_core(runner)
    for request in requests(3, ignore_eos=True):
        core.add_request(request)
    outputs = []
    while not runner.num_failures:
        outputs += core.step()
    runner.check = lambda name, size: None
    while core.has_work:
        outputs += core.step()
    ends = {output.sequence.request_id: output for output in outputs if output.is_last}
    assert isinstance(ends.pop("r0").error, EngineError)
    assert [output.error for output in ends.values()] == [None, None]
    core.check_integrity()


def test_the_newest_wait_and_come_back_one_by_one_as_others_end() -> None:
    runner = short_of_memory(FakeRunner, "launch", 2)
    core = make_core(runner)
    sequences = [core.add_request(request) for request in requests(6, ignore_eos=True)]
    core.step()
    assert core.scheduler.running == sequences[:1]
    while core.has_work:
        core.step()
    assert runner.num_failures <= 6
    assert [sequence.num_preemptions for sequence in sequences][:1] == [0]


def test_a_request_may_end_while_its_batch_is_launched_again() -> None:
    """The token that ends it is read between a launch and a draw that fails."""
    runner = short_of_memory(AheadRunner, "sample", 1, from_batch=2)
    prompt = stop_prompt()
    results = run(make_core(runner), [make_request("a", prompt, max_tokens=9), *requests(2, ignore_eos=True)])
    lone = run(make_core(FakeRunner()), [make_request("a", prompt, max_tokens=9)])["a"]
    assert results["a"].token_ids == lone.token_ids
    assert runner.num_failures > 0


def test_requests_can_be_stopped_instead_of_computed_again() -> None:
    core = make_core(short_of_memory(FakeRunner, "launch", 1), stop_preempted_request=True)
    results = run(core, requests(2))
    assert results["r0"].error is None
    assert str(results["r1"].error) == "the request was stopped: the device ran out of memory"


@pytest.mark.parametrize("kind", [FakeRunner, AheadRunner])
@pytest.mark.parametrize("seed", range(25))
def test_random_lives_lose_nothing_though_memory_runs_out_at_any_time(kind: type[FakeRunner], seed: int) -> None:
    """Few blocks, requests that come and go at any step, failures of either phase that smaller batches may not have."""
    random = Random(seed)
    runner = short_of_memory(kind, "both", 0, num_blocks=24)
    runner.check = lambda name, size: runner.fail_sometimes(random, size)
    core = make_core(runner, max_num_seqs=random.randint(1, 6), enable_prefix_caching=random.random() < 0.5)
    sequences, outputs = [], []
    for number in range(12):
        prompt = [random.randint(0, 1) for _ in range(random.randint(1, 30))]
        settings = {"seed": number % 2, "max_tokens": random.randint(1, 20), "ignore_eos": random.random() < 0.5}
        sequences.append(core.add_request(make_request(f"r{number}", prompt, **settings)))
        for _ in range(random.randint(0, 4)):
            outputs += core.step()
        if random.random() < 0.2:
            core.cancel(random.choice(sequences))
        core.check_integrity()
    while core.has_work:
        outputs += core.step()
    core.check_integrity()
    ended = {output.sequence: output for output in outputs if output.is_last}
    for sequence in sequences:
        lone = expected_completion(
            sequence.prompt_token_ids, msgspec.structs.replace(sequence.sampling_params, seed=sequence.seed)
        )
        shown = [token for output in outputs if output.sequence is sequence for token in output.token_ids]
        assert shown == lone[: len(shown)]
        if sequence in ended and ended[sequence].error is None:
            assert shown == lone
    assert any(isinstance(output.error, EngineError) for output in ended.values()) or runner.num_failures > 0
