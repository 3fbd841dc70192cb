#!/usr/bin/env python3
"""Prove and measure on a GPU what can only be proved and measured there, in under five minutes.

    python scripts/gpu_check.py                                   # everything, on models of random weights
    python scripts/gpu_check.py --models Llama-3-8B --checks decode,prefill
    python scripts/gpu_check.py --device cpu --models Tiny        # a try of this script without a GPU

Prints one line an item: PASS, FAIL or SKIP, what was found, how long it took. The exit status is 1 after a FAIL, else 2
after a SKIP, else 0. Aims: decode of one sequence at 85% of the copy bandwidth, prefill at 60% of the measured matrix
product, sampling under 2% of a step, constrained steps within 1% of free ones, memory within the share that was given.

On a machine without a package index, carry the wheels that it lacks, for its own Python, and put them on its path:

    pip download --no-deps --only-binary=:all: --python-version 3.12 --dest wheels msgspec llguidance gguf jsonschema-rs
    pip install --no-index --no-deps --target site wheels/*.whl && PYTHONPATH=site python scripts/gpu_check.py

Only the item `server` needs these four. All items need torch, numpy, tqdm and cupy, `logits` and `server` transformers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import torch

from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import UNKNOWN_TOKEN, Sequence
from engine.runner.memory_profile import CudaMemory, largest_steps
from engine.runner.model_runner import ModelRunner
from scripts.gpu_check_kernels import check_attention, check_flashinfer, check_logits, check_sampler
from scripts.gpu_check_models import SHAPES, Work
from scripts.gpu_check_place import (
    BATCHES,
    GREEDY,
    PREFILL,
    UTILIZATION,
    Failed,
    Place,
    Skipped,
    make_sequence,
    prefill,
)

CONTEXT, STEPS = 512, 32
_MEMORY_SLACK = 0.02  # of the memory: allocations are rounded, and graphs are estimated


def decodes(runner: ModelRunner, batch: int, context: int, params: SamplingParams = GREEDY) -> list[Sequence]:
    """Sequences of `context` tokens with blocks for more; what lies in their KV cache does not matter."""
    width = -(-(context + 2 * STEPS + 2) // runner.block_size)
    if batch * width > runner.num_blocks:
        raise Skipped(f"{batch} sequences of {context} tokens need more than {runner.num_blocks} blocks")
    sequences = [make_sequence(number, context, params) for number in range(batch)]
    for number, sequence in enumerate(sequences):
        sequence.block_table = list(range(number * width, (number + 1) * width))
    return sequences


def step(runner: ModelRunner, sequences: list[Sequence], bitmask: Any = None) -> None:
    """One decode of all; the tokens are kept."""
    batch = SchedulerOutput([ScheduledSequence(s, s.num_tokens - 1, 1, True) for s in sequences])
    for sequence, token in zip(sequences, runner.read(runner.sample(runner.launch(batch), bitmask)), strict=True):
        sequence.token_ids.append(token.token_id or 0)


def step_ahead(runner: ModelRunner, sequences: list[Sequence], steps: int) -> None:
    """Decodes as the engine does them on a GPU: each step is launched before the one before it is read."""
    pending = None
    for _ in range(steps):
        items = [ScheduledSequence(s, s.num_tokens - 1, 1, True) for s in sequences]
        forward = runner.launch(SchedulerOutput(items))
        if pending is not None:
            take_in(runner, sequences, pending)
        pending = runner.sample(forward, None)
        for sequence in sequences:
            sequence.token_ids.append(UNKNOWN_TOKEN)
    take_in(runner, sequences, pending)


def take_in(runner: ModelRunner, sequences: list[Sequence], pending: Any) -> None:
    for sequence, token in zip(sequences, runner.read(pending), strict=True):
        sequence.token_ids[-1] = token.token_id or 0


def check_graphs(place: Place, name: str) -> str:
    """Decodes by graphs give the tokens of decodes without."""
    if place.device.type != "cuda":
        raise Skipped("graphs need a GPU")
    tokens = []
    for eager in (True, False):
        runner = place.runner(name, eager=eager)
        if not eager and not runner.replays_graphs:
            raise Skipped("decodes of this model are not recorded")
        sequences = decodes(runner, 8, 20)
        for sequence in sequences:
            batch = SchedulerOutput([ScheduledSequence(sequence, 0, 20, True)])
            (drawn,) = runner.read(runner.sample(runner.launch(batch), None))
            sequence.token_ids.append(drawn.token_id or 0)
        for _ in range(STEPS):
            step(runner, sequences)
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


def check_decode(place: Place, name: str, batch: int) -> str:
    """Tokens a second, and the share of the time that moving the bytes alone would take."""
    runner = place.runner(name)
    sequences = decodes(runner, batch, CONTEXT)
    if runner.runs_ahead:
        seconds = place.seconds(lambda: step_ahead(runner, sequences, STEPS), 1) / STEPS
    else:
        seconds = place.seconds(lambda: step(runner, sequences), STEPS)
    share = Work(SHAPES[name]).bytes_moved(batch, CONTEXT) / place.copy_bandwidth() / seconds
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
    share = Work(SHAPES[name]).operations(tokens) / place.product_peak() / seconds
    found = f"{tokens / seconds:,.0f} tokens/s, {share:.0%} of the peak"
    if share < 0.6:
        raise Failed(f"{found}, aim 60%")
    return found


def check_sampling(place: Place, name: str) -> str:
    """What sampling, and a mask on every row, add to a step."""
    runner = place.runner(name)
    params = SamplingParams(max_tokens=10**6, temperature=0.8, top_p=0.95)
    mask = np.full((64, -(-runner.vocab_size // 32)), 0x55555555, np.int32)
    one, many = decodes(runner, 1, CONTEXT, params), decodes(runner, 64, CONTEXT, params)
    batch = SchedulerOutput([ScheduledSequence(one[0], CONTEXT - 1, 1, True)])
    forward = place.seconds(lambda: runner.launch(batch), STEPS)
    both = place.seconds(lambda: runner.sample(runner.launch(batch), None), STEPS)
    free = place.seconds(lambda: step(runner, many), STEPS // 2)
    constrained = place.seconds(lambda: step(runner, many, mask), STEPS // 2)
    share, ratio = both / forward - 1, constrained / free - 1
    found = f"sampling adds {share:.1%} to a step, a mask {ratio:.1%}"
    if share > 0.02 or ratio > 0.01:
        raise Failed(f"{found}, aims 2% and 1%")
    return found


def check_server(place: Place) -> str:
    """Time to the first token and between tokens, through server.py."""
    from scripts.gpu_check_server import measure

    place.release()
    try:
        return measure(place.device.type, SHAPES["Tiny"])
    except (ImportError, OSError) as problem:
        raise Skipped(str(problem)) from problem


def checks(place: Place) -> Iterator[tuple[str, Callable[[], str]]]:
    """Every item by its name."""
    yield "kernels sampler", partial(check_sampler, place)
    yield "kernels attention", partial(check_attention, place)
    if find_spec("flashinfer") is not None:
        yield "kernels flashinfer", partial(check_flashinfer, place)
    yield "logits", partial(check_logits, place)
    for name in place.models:
        yield f"graphs {name}", partial(check_graphs, place, name)
        yield f"memory {name}", partial(check_memory, place, name)
        for batch in BATCHES:
            yield f"decode {name} x{batch}", partial(check_decode, place, name, batch)
        yield f"prefill {name}", partial(check_prefill, place, name)
        yield f"sampling {name}", partial(check_sampling, place, name)
    yield "server", partial(check_server, place)


def run(name: str, check: Callable[[], str]) -> str:
    """Do one item and print its line; PASS, FAIL or SKIP."""
    started = time.perf_counter()
    try:
        outcome, found = "PASS", check()
    except Skipped as reason:
        outcome, found = "SKIP", str(reason)
    except Failed as problem:
        outcome, found = "FAIL", str(problem)
    except Exception as problem:
        outcome, found = "FAIL", f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"
    print(f"{outcome}  {name:<28} {found}  ({time.perf_counter() - started:.1f} s)", flush=True)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description="Prove and measure the GPU path.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", default="Llama-3-8B,Qwen3-8B,DeepSeek-V2-Lite", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--checks", default="", help="beginnings of items' names, by comma (all)")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("SKIP  everything: torch sees no NVIDIA GPU")
        return 2
    unknown = [name for name in given.models.split(",") if name not in SHAPES]
    if unknown:
        parser.error(f"--models: {', '.join(unknown)} is none of {', '.join(SHAPES)}")
    place = Place(torch.device(given.device), given.models.split(","))
    print(torch.cuda.get_device_name() if given.device == "cuda" else "CPU", "torch", torch.__version__)
    wanted = tuple(given.checks.split(",")) if given.checks else ("",)
    outcomes = [run(name, check) for name, check in checks(place) if name.startswith(wanted)]
    place.release()
    return 1 if "FAIL" in outcomes else 2 if "SKIP" in outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
