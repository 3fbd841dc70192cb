from __future__ import annotations

import gc
import time

import pytest

from engine.backend import DeadlineExceededError, EngineError
from engine.core.engine_core import EngineCore
from engine.core.sequence import Sequence, SequenceStatus
from engine.core.sequence_output import SequenceOutput
from recipe.stream.inference import InferenceFinishReason
from tests.engine.fake_runner import FakeRunner, make_core, make_request


def endless(core: EngineCore, name: str, num_prompt_tokens: int, max_tokens: int = 50, **settings: object) -> Sequence:
    prompt = [ord(name[0]) % 32, *([1] * (num_prompt_tokens - 1))]
    return core.add_request(make_request(name, prompt, max_tokens=max_tokens, ignore_eos=True, **settings))


def drain(core: EngineCore) -> list[SequenceOutput]:
    outputs: list[SequenceOutput] = []
    for _ in range(10_000):
        if not core.has_work:
            return outputs
        outputs.extend(core.step())
    raise AssertionError("the engine never came to rest")


def test_every_running_decode_is_in_every_step_before_any_prefill() -> None:
    runner = FakeRunner(max_model_len=200)
    core = make_core(runner)
    endless(core, "a", 3)
    endless(core, "b", 3)
    core.step()
    endless(core, "long", 60)
    for _ in range(8):
        core.step()
    for batch in runner.batches[1:]:
        assert [name for name, _, _, _ in batch[:2]] == ["a", "b"]
        assert [num_tokens for _, _, num_tokens, _ in batch[:2]] == [1, 1]


def test_a_decode_waits_for_one_prefill_chunk_at_most() -> None:
    runner = FakeRunner(num_blocks=128, max_model_len=400)
    core = make_core(runner)
    endless(core, "a", 3)
    core.step()
    endless(core, "long", 100)
    endless(core, "longer", 110)
    drain(core)
    for batch in runner.batches[1:]:
        if batch[0][0] == "a":
            assert sum(num_tokens for _, _, num_tokens, _ in batch[1:] if num_tokens > 1) <= 8


def test_a_step_never_exceeds_its_token_budget() -> None:
    runner = FakeRunner(num_blocks=128)
    core = make_core(runner, max_num_batched_tokens=16, max_prefill_chunk_tokens=None)
    for index in range(12):
        endless(core, f"r{index}", 5 + 7 * index % 40, max_tokens=10)
    drain(core)
    assert max(sum(num_tokens for _, _, num_tokens, _ in batch) for batch in runner.batches) == 16
    assert max(len(batch) for batch in runner.batches) == 8


def test_prompts_that_came_together_are_answered_one_after_another_where_the_device_gains_nothing() -> None:
    runner = FakeRunner(num_blocks=128)
    runner.most_prompt_tokens = 16
    core = make_core(runner, max_num_batched_tokens=128, max_prefill_chunk_tokens=None)
    for index in range(6):
        endless(core, f"r{index}", 8, max_tokens=10)
    drain(core)
    assert [name for name, _, _, _ in runner.batches[0]] == ["r0", "r1"]
    assert all(sum(tokens for _, _, tokens, _ in batch if tokens > 1) <= 16 for batch in runner.batches)


def begun_in_each_step(core: EngineCore, runner: FakeRunner) -> list[list[tuple[str, int]]]:
    """The prefills of the steps until all prompts are computed: names and tokens."""
    while core.scheduler.waiting or any(not sequence.is_decoding for sequence in core.scheduler.running):
        core.step()
    return [[(name, tokens) for name, _, tokens, _ in batch if tokens > 1] for batch in runner.batches]


@pytest.mark.parametrize(
    ("most_prompt_tokens", "lengths", "expected"),
    [
        (16, (7, 7, 7), [[("a", 7), ("b", 7)], [("c", 7)]]),  # the next step holds all of it
        (16, (7, 20), [[("a", 7), ("b", 4)], [("b", 16)]]),  # no step holds all of it
        (16, (20, 14), [[("a", 8), ("b", 4)], [("a", 12), ("b", 2)], [("b", 8)]]),  # a long one does not hold it up
        (None, (14, 14, 14), [[("a", 14), ("b", 14), ("c", 2)], [("c", 12)]]),  # full steps cost the device nothing
    ],
)
def test_a_prompt_that_the_next_step_holds_whole_is_not_begun_where_parts_cost_time(
    most_prompt_tokens: int | None, lengths: tuple[int, ...], expected: list[list[tuple[str, int]]]
) -> None:
    runner = FakeRunner(num_blocks=128)
    runner.most_prompt_tokens = most_prompt_tokens
    core = make_core(runner, max_prefill_chunk_tokens=None)
    for name, length in zip("abc", lengths, strict=False):
        endless(core, name, length)
    assert begun_in_each_step(core, runner) == expected


def test_what_the_cache_holds_of_a_prompt_takes_no_room_in_the_step() -> None:
    runner = FakeRunner(num_blocks=128)
    runner.most_prompt_tokens = 16
    core = make_core(runner, max_prefill_chunk_tokens=None)
    endless(core, "b", 12, max_tokens=1)
    drain(core)
    runner.batches.clear()
    endless(core, "a", 8)
    endless(core, "b", 12)  # 8 of them are in the cache
    assert begun_in_each_step(core, runner)[0] == [("a", 8), ("b", 4)]


def test_a_prompt_in_chunks_samples_once_at_its_end() -> None:
    runner = FakeRunner()
    core = make_core(runner)
    endless(core, "a", 70, max_tokens=1)
    drain(core)
    assert runner.batches == [[("a", 0, 32, False)], [("a", 32, 32, False)], [("a", 64, 6, True)]]


def test_a_short_prompt_does_not_wait_for_all_of_a_long_one() -> None:
    runner = FakeRunner(num_blocks=128, max_model_len=400)
    core = make_core(runner)
    endless(core, "a", 3, max_tokens=90)
    core.step()
    endless(core, "long", 200)
    core.step()
    short = endless(core, "short", 4)
    core.step()
    core.step()
    assert short.num_completion_tokens >= 1


def test_a_long_prompt_moves_on_in_every_step_while_short_ones_keep_coming() -> None:
    runner = FakeRunner(num_blocks=256, max_model_len=400)
    core = make_core(runner)
    endless(core, "a", 3, max_tokens=300)
    core.step()
    long = endless(core, "long", 100)
    for index in range(30):
        before = long.num_computed_tokens
        endless(core, f"s{index}", 8, max_tokens=1)
        core.step()
        assert long.num_computed_tokens > before
    assert long.num_completion_tokens >= 1


def test_a_lower_priority_number_is_served_first_then_the_earlier_arrival() -> None:
    runner = FakeRunner()
    core = make_core(runner, max_num_seqs=1)
    for name, priority in (("first", 0), ("late", 5), ("urgent", -1), ("second", 0)):
        endless(core, name, 3, max_tokens=1, priority=priority)
    drain(core)
    assert [batch[0][0] for batch in runner.batches] == ["urgent", "first", "second", "late"]


def test_when_blocks_run_out_the_last_in_order_is_preempted_and_later_completed() -> None:
    runner = FakeRunner(num_blocks=12)
    core = make_core(runner, enable_prefix_caching=False)
    sequences = {name: endless(core, name, 8, 20, priority=p) for name, p in (("low", 1), ("high", 0))}
    sequences["mid"] = endless(core, "mid", 8, 20, priority=0)
    finished = [output.sequence.request_id for output in drain(core) if output.is_last]
    assert finished[0] == "high"
    assert sequences["high"].num_preemptions == 0
    assert sequences["low"].num_preemptions > 0
    assert core.scheduler.num_preemptions == sum(sequence.num_preemptions for sequence in sequences.values())
    assert all(sequence.num_completion_tokens == 20 for sequence in sequences.values())


def test_a_preempted_sequence_finds_its_own_blocks_in_the_cache() -> None:
    runner = FakeRunner(num_blocks=12)
    core = make_core(runner)
    first = endless(core, "first", 8, 30)
    second = endless(core, "second", 8, 30)
    while not second.num_preemptions:
        core.step()
    while second.status is not SequenceStatus.RUNNING:
        core.step()
    resumed_at = next(start for name, start, _, _ in runner.batches[-1] if name == "second")
    assert resumed_at > 0
    assert second.num_cached_tokens == 0, "what the request is told is the hits of its prompt, not of its own return"
    drain(core)
    assert first.num_completion_tokens == second.num_completion_tokens == 30


def test_preemption_can_stop_the_request_instead() -> None:
    core = make_core(FakeRunner(num_blocks=12), stop_preempted_request=True, enable_prefix_caching=False)
    endless(core, "first", 8, 30)
    endless(core, "second", 8, 30)
    ends = {output.sequence.request_id: output for output in drain(core) if output.is_last}
    assert ends["first"].finish_reason is InferenceFinishReason.Length
    assert isinstance(ends["second"].error, EngineError)
    assert core.blocks.num_used == 0


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_passed_deadline_drops_a_sequence_queued_or_running(num_steps: int) -> None:
    core = make_core(FakeRunner(), max_num_seqs=1)
    if num_steps == 0:
        endless(core, "in the way", 3)
    doomed = endless(core, "doomed", 40, deadline=time.monotonic() + 60)
    for _ in range(num_steps):
        core.step()
    assert (doomed.status is SequenceStatus.RUNNING) == (num_steps > 0)
    doomed.deadline = time.monotonic()
    ends = [output for output in core.step() if output.is_last]
    assert [(type(end.error), end.sequence) for end in ends] == [(DeadlineExceededError, doomed)]
    drain(core)
    assert core.blocks.num_used == 0


def test_a_sequence_that_ends_before_its_deadline_is_not_kept_until_then() -> None:
    core = make_core(FakeRunner())
    ended, cancelled = (endless(core, name, 3, 2, deadline=time.monotonic() + 600) for name in "ab")
    core.cancel(cancelled)
    drain(core)
    del ended, cancelled
    core.step()
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is Sequence and thing.request_id in "ab"]


def test_cancel_frees_a_sequence_in_every_state_and_twice_is_once() -> None:
    core = make_core(FakeRunner(), max_num_seqs=2)
    decoding = endless(core, "decoding", 3)
    core.step()
    prefilling, queued = endless(core, "prefilling", 60), endless(core, "queued", 5)
    core.step()
    assert prefilling.num_uncomputed_tokens > 1 and queued.status is SequenceStatus.WAITING
    for sequence in (queued, prefilling, decoding):
        core.cancel(sequence)
        core.cancel(sequence)
        core.check_integrity()
    assert not core.has_work
    assert core.blocks.num_used == 0


def test_a_preempted_sequence_can_be_cancelled_while_it_waits() -> None:
    core = make_core(FakeRunner(num_blocks=12))
    first, second = endless(core, "first", 8, 30), endless(core, "second", 8, 30)
    while not second.num_preemptions:
        core.step()
    assert second.status is SequenceStatus.WAITING
    core.cancel(second)
    core.check_integrity()
    outputs = drain(core)
    assert second not in {output.sequence for output in outputs}
    assert first.num_completion_tokens == 30


def test_a_finished_sequence_cannot_be_cancelled_into_freeing_anothers_blocks() -> None:
    core = make_core(FakeRunner())
    short, long = endless(core, "short", 3, 1), endless(core, "long", 3, 20)
    core.step()
    assert short.is_finished
    core.cancel(short)
    core.check_integrity()
    drain(core)
    assert long.num_completion_tokens == 20


def test_what_is_reserved_for_growth_keeps_out_who_would_be_preempted() -> None:
    for reserved_tokens, expected in ((1, True), (32, False)):
        core = make_core(FakeRunner(num_blocks=12), reserved_tokens=reserved_tokens, enable_prefix_caching=False)
        sequences = [endless(core, name, 4, 20) for name in "abcd"]
        drain(core)
        assert (core.scheduler.num_preemptions > 0) == expected
        assert all(sequence.num_completion_tokens == 20 for sequence in sequences)


def test_a_sequence_that_fits_alone_is_admitted_whatever_is_reserved() -> None:
    core = make_core(FakeRunner(num_blocks=6), reserved_tokens=1000)
    sequence = endless(core, "a", 20, 50)
    drain(core)
    assert sequence.num_tokens == 24


def test_admission_leaves_a_spare_block_for_each_running_sequence() -> None:
    core = make_core(FakeRunner(num_blocks=6), enable_prefix_caching=False)
    endless(core, "first", 8, 4)
    core.step()
    late = endless(core, "late", 12, 2)
    core.step()
    assert late.status is SequenceStatus.WAITING, "3 blocks are free, one of them is spare"
    drain(core)
    assert late.num_completion_tokens == 2
    assert core.scheduler.num_preemptions == 0
