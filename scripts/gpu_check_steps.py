"""The checks of gpu_check.py that decode and prefill: graphs, memory, tokens a second, what sampling and masks cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import UNKNOWN_TOKEN, Sequence
from engine.runner.memory_profile import CudaMemory, largest_steps
from engine.runner.model_runner import ModelRunner
from scripts.gpu_check_models import SHAPES, Work
from scripts.gpu_check_place import GREEDY, PREFILL, UTILIZATION, Failed, Place, Skipped, make_sequence, prefill

CONTEXT, STEPS, ROUNDS, MANY = 512, 32, 3, 64
_DRAWN = SamplingParams(max_tokens=10**6, temperature=0.8, top_p=0.95)
_PENALISED = SamplingParams(max_tokens=10**6, top_k=40, repetition_penalty=1.2)
_MEMORY_SLACK = 0.02  # of the memory: allocations are rounded, and graphs are estimated


def decodes(runner: ModelRunner, batch: int, context: int, params: SamplingParams = GREEDY) -> list[Sequence]:
    """Sequences of `context` tokens with blocks for more; what lies in their KV cache does not matter."""
    width = -(-(context + (ROUNDS + 1) * STEPS + 2) // runner.block_size)
    if batch * width > runner.num_blocks:
        raise Skipped(f"{batch} sequences of {context} tokens need more than {runner.num_blocks} blocks")
    sequences = [make_sequence(number, context, params) for number in range(batch)]
    for number, sequence in enumerate(sequences):
        sequence.block_table = list(range(number * width, (number + 1) * width))
    return sequences


def advance(runner: ModelRunner, sequences: list[Sequence], steps: int, bitmask: Any = None) -> None:
    """Decodes as the engine does them: on a GPU each step is launched before the one before it is read."""
    pending = None
    for _ in range(steps):
        items = [ScheduledSequence(s, s.num_tokens - 1, 1, True) for s in sequences]
        forward = runner.launch(SchedulerOutput(items))
        if pending is not None:
            take_in(runner, sequences, pending)
        pending = runner.sample(forward, bitmask)
        for sequence in sequences:
            sequence.token_ids.append(UNKNOWN_TOKEN)
        if not runner.runs_ahead:
            take_in(runner, sequences, pending)
            pending = None
    if pending is not None:
        take_in(runner, sequences, pending)


def take_in(runner: ModelRunner, sequences: list[Sequence], pending: Any) -> None:
    for sequence, token in zip(sequences, runner.read(pending), strict=True):
        sequence.token_ids[-1] = token.token_id or 0


def check_graphs(place: Place, name: str) -> str:
    """Decodes by graphs give the tokens of decodes without, greedy ones, drawn ones and penalised ones."""
    if place.device.type != "cuda":
        raise Skipped("graphs need a GPU")
    tokens = []
    for eager in (True, False):
        runner = place.runner(name, eager=eager)
        if not eager and not runner.replays_draws:
            raise Failed("forward and sampling of this model are not both recorded")
        sequences = decodes(runner, 8, 20)
        for sequence, params in zip(sequences, 4 * [GREEDY] + 2 * [_DRAWN] + 2 * [_PENALISED], strict=True):
            sequence.sampling_params = params
            batch = SchedulerOutput([ScheduledSequence(sequence, 0, 20, True)])
            (drawn,) = runner.read(runner.sample(runner.launch(batch), None))
            sequence.token_ids.append(drawn.token_id or 0)
        advance(runner, sequences, STEPS)
        tokens.append([sequence.completion_token_ids for sequence in sequences])
    if tokens[0] != tokens[1]:
        raise Failed("the tokens differ")
    return f"{8 * STEPS} tokens, all equal"


def check_memory(place: Place, name: str) -> str:
    """The largest steps stay within the share of the memory that was given."""
    if place.device.type != "cuda":
        raise Skipped("memory is measured on a GPU")
    runner = place.runner(name)
    tokens = runner.num_blocks * runner.block_size
    settings = place.settings(eager=False)
    for batch in largest_steps(settings, runner.block_size, runner.max_model_len, tokens // runner.max_model_len):
        runner.step(batch)
    free, total = CudaMemory(place.device).free_and_total()
    used = 1 - free / total
    found = f"{used:.1%} of the memory in use, {tokens:,} tokens of KV cache"
    if used > UTILIZATION + _MEMORY_SLACK:
        raise Failed(f"{found}, given {UTILIZATION:.0%}")
    return found


def check_roofs(place: Place) -> str:
    """What the card can do: bytes a second of a large copy, operations a second of a large matrix product."""
    return f"copies move {place.copy_bandwidth / 1e9:,.0f} GB/s, products {place.product_peak / 1e12:,.1f} TFLOP/s"


def check_decode(place: Place, name: str, batch: int) -> str:
    """Tokens a second, and the share of the time that moving the bytes alone would take."""
    runner = place.runner(name)
    sequences = decodes(runner, batch, CONTEXT)
    seconds = place.seconds(lambda: advance(runner, sequences, STEPS), 1) / STEPS
    share = Work(SHAPES[name]).bytes_moved(batch, CONTEXT) / place.copy_bandwidth / seconds
    found = f"{batch / seconds:,.0f} tokens/s, {seconds * 1e3:.2f} ms a step, {share:.0%} of the roof"
    if batch == 1 and share < 0.85:
        raise Failed(f"{found}, aim 85%")
    return found


def check_prefill(place: Place, name: str) -> str:
    """Tokens a second of a long prompt, and the share of the measured matrix product."""
    runner = place.runner(name)
    batch = prefill(runner, make_sequence(0, min(PREFILL, runner.max_model_len - 1)))
    tokens = batch.num_batched_tokens
    seconds = place.seconds(lambda: runner.launch(batch), 4)
    share = Work(SHAPES[name]).operations(tokens) / place.product_peak / seconds
    found = f"{tokens / seconds:,.0f} tokens/s, {share:.0%} of the peak"
    if share < 0.6:
        raise Failed(f"{found}, aim 60%")
    return found


def check_sampling(place: Place, name: str) -> str:
    """What sampling adds to a step of one sequence, and a mask on every row to a step of many."""
    runner = place.runner(name)
    (one,) = decodes(runner, 1, CONTEXT, _DRAWN)
    batch = SchedulerOutput([ScheduledSequence(one, CONTEXT - 1, 1, True)])
    forward = place.seconds(lambda: runner.launch(batch), STEPS)
    both = place.seconds(lambda: runner.sample(runner.launch(batch), None), STEPS)
    many = decodes(runner, MANY, CONTEXT, _DRAWN)
    mask = np.full((MANY, -(-runner.vocab_size // 32)), 0x55555555, np.int32)
    free, constrained = (_seconds_a_step(place, runner, many, bitmask) for bitmask in (None, mask))
    share, ratio = both / forward - 1, constrained / free - 1
    found = (
        f"sampling adds {share:.1%} to a step; constrained {constrained * 1e3:.2f} ms, free {free * 1e3:.2f} ms a step "
        f"of {MANY}, {ratio:+.1%}"
    )
    if share > 0.02 or ratio > 0.01:
        raise Failed(f"{found}, aims 2% and 1%")
    return found


def _seconds_a_step(place: Place, runner: ModelRunner, sequences: list[Sequence], bitmask: Any) -> float:
    """The least of a few rounds."""
    steps = STEPS // 4
    rounds = [place.seconds(lambda: advance(runner, sequences, steps, bitmask), 1) for _ in range(ROUNDS)]
    return min(rounds) / steps
