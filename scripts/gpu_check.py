#!/usr/bin/env python3
"""Prove and measure on a GPU what can only be proved and measured there, in under five minutes.

    python scripts/gpu_check.py                                   # everything, on models of random weights
    python scripts/gpu_check.py --models Llama-3-8B --checks decode,prefill
    python scripts/gpu_check.py --device cpu --models Tiny        # a try of this script without a GPU

Prints one line an item: PASS, FAIL or SKIP, what was found, how long it took. The exit status is 1 after a FAIL, else 2
after a SKIP, else 0. Aims: decode of one sequence at 85% of the copy bandwidth, prefill at 60% of the measured matrix
product, sampling under 2% of a step, constrained steps within 1% of free ones.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import torch

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.core.sequence import UNKNOWN_TOKEN, Sequence
from engine.runner.forward_batch import BatchBuilder
from engine.runner.kernels.cuda_attention import KernelAttention
from engine.runner.kernels.cuda_library import CudaLauncher
from engine.runner.kernels.cuda_sampler import CudaSampler
from engine.runner.kv_cache import KVCache, KVShape
from engine.runner.model_runner import ModelRunner
from engine.runner.sampler import Sampler
from engine.runner.weights.errors import ModelLoadError
from scripts.gpu_check_models import SHAPES, RandomFiles, RandomTensors, Work

BATCHES, CONTEXT, STEPS, PREFILL = (1, 8, 64, 256), 512, 32, 2048
GREEDY = SamplingParams(max_tokens=10**6, temperature=0)


class Skipped(Exception):
    """The item cannot be checked here; the message says why."""


class Failed(Exception):
    """The item is not as it should be; the message says what was found."""


@dataclass
class Place:
    """Where the checks run; `models` are the shapes asked for."""

    device: torch.device
    models: list[str]
    loaded: dict[tuple[str, bool], ModelRunner] = field(default_factory=dict)

    def runner(self, name: str, *, eager: bool = False) -> ModelRunner:
        """The model of a shape; another one that is loaded makes room first."""
        if (name, eager) not in self.loaded:
            self.release()
            settings = EngineConfig(
                device=self.device.type,
                cpu_kernels="off",
                max_num_seqs=max(BATCHES),
                max_num_batched_tokens=PREFILL,
                max_prefill_chunk_tokens=None,
                gpu_memory_utilization=0.8,  # what is measured beside the model needs some
                enforce_eager=eager,
                kv_cache_mib=None if self.device.type == "cuda" else 512,
            )
            files: Any = RandomFiles(SHAPES[name], self.device)
            torch.manual_seed(0)
            try:
                self.loaded[name, eager] = ModelRunner.load(files, settings, partial(print, f"    {name}:"))
            except (ModelLoadError, torch.OutOfMemoryError) as problem:
                raise Skipped(str(problem)) from problem
        return self.loaded[name, eager]

    def release(self) -> None:
        for runner in self.loaded.values():
            runner.close()
        self.loaded.clear()
        gc.collect()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object], times: int) -> float:
        """Seconds a call of `work` takes."""
        work()
        self.wait()
        started = time.perf_counter()
        for _ in range(times):
            work()
        self.wait()
        return (time.perf_counter() - started) / times

    @property
    def launcher(self) -> CudaLauncher:
        if self.device.type != "cuda":
            raise Skipped("the kernels need a GPU")
        try:
            return CudaLauncher(self.device)
        except ImportError as problem:
            raise Skipped("cupy is not installed") from problem

    def copy_bandwidth(self) -> float:
        """Bytes a second, read and written, of a large copy."""
        size = 2**30 if self.device.type == "cuda" else 2**26
        source = torch.zeros(size, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * size / self.seconds(lambda: target.copy_(source), 10)

    def product_peak(self) -> float:
        """Operations a second of a large matrix product."""
        size = 8192 if self.device.type == "cuda" else 512
        left = torch.randn(size, size, dtype=torch.bfloat16, device=self.device)
        right = torch.randn_like(left)
        return 2 * size**3 / self.seconds(lambda: left @ right, 10)


def make_sequence(number: int, length: int, params: SamplingParams = GREEDY) -> Sequence:
    return Sequence(f"check-{number}", [number % 97 + 1] * length, length, params, number, frozenset(), 10**6, number)


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


def prefill(runner: ModelRunner, sequence: Sequence) -> SchedulerOutput:
    sequence.block_table = list(range(-(-sequence.num_tokens // runner.block_size)))
    return SchedulerOutput([ScheduledSequence(sequence, 0, sequence.num_tokens, True)])


def check_sampler(place: Place) -> str:
    """The sampling kernel draws what the tensors draw, but for rounding."""
    vocab, rows, rounds = 128256, 250, 40
    kernel, tensors = CudaSampler(vocab, place.launcher), Sampler(vocab)
    settings = [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.95),
        SamplingParams(top_k=50),
        SamplingParams(min_p=0.02, repetition_penalty=1.2, logit_bias={5: 2.0}),
        GREEDY,
    ]
    differing = 0
    for turn in range(rounds):
        logits = torch.randn(rows, vocab, device=place.device) * 3
        mask = np.random.default_rng(turn).integers(-(2**31), 2**31, (rows, vocab // 32), np.int32)
        sequences = [make_sequence(turn * rows + row, 4, settings[row % len(settings)]) for row in range(rows)]
        items = [ScheduledSequence(sequence, 3, 1, True) for sequence in sequences]
        ours = kernel.sample(logits.clone(), items, mask).token_ids
        differing += int((ours != tensors.sample(logits, items, mask).token_ids).sum())
    found = f"{differing} of {rows * rounds:,} draws differ"
    if differing > rows * rounds / 10_000:
        raise Failed(found)
    return found


def check_attention(place: Place) -> str:
    """The attention kernel against gathers in float32."""
    worst = 0.0
    for head_dim, group, dtype in ((128, 4, torch.bfloat16), (64, 8, torch.float16), (128, 7, torch.float16)):
        shape = KVShape(1, 8, head_dim, dtype)
        cache = KVCache(shape, 2048, 16, place.device).layers[0]
        cache.keys.normal_()
        cache.values.normal_()
        exact = KVCache(KVShape(1, 8, head_dim, torch.float32), 2048, 16, place.device).layers[0]
        exact.keys.copy_(cache.keys)
        exact.values.copy_(cache.values)
        blocks = iter(torch.randperm(2048).tolist())
        items = []
        for number, length in enumerate((1, 17, 500, 4097, 9000)):
            sequence = make_sequence(number, length)
            sequence.block_table = [next(blocks) for _ in range(-(-length // 16))]
            items.append(ScheduledSequence(sequence, length - 1, 1, True))
        query = torch.randn(len(items), 8 * group, head_dim, dtype=dtype, device=place.device)
        own = torch.zeros(len(items), 8, head_dim, dtype=dtype, device=place.device)
        paged = KernelAttention(place.launcher, shape, group, place.device)
        batch = SchedulerOutput(items)
        ours = BatchBuilder(16, group, dtype, place.device, (None,), paged).build(batch)
        plain = BatchBuilder(16, group, torch.float32, place.device).build(batch)
        out = ours.attend(query, own, own, cache, head_dim**-0.5)
        expected = plain.attend(query.float(), own.float(), own.float(), exact, head_dim**-0.5)
        worst = max(worst, float((out.float() - expected).abs().max()))
    found = f"largest difference {worst:.4f}"
    if not worst < 0.02:
        raise Failed(found)
    return found


def check_logits(place: Place) -> str:
    """The logits of a small model against those of transformers."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as problem:
        raise Skipped("transformers is not installed") from problem
    numbers = {key: value for key, value in SHAPES["Tiny"].items() if key != "architectures"}
    torch.manual_seed(1)
    reference = LlamaForCausalLM(LlamaConfig(**numbers)).to(place.device, torch.float32).eval()
    weights = {name: tensor.detach() for name, tensor in reference.state_dict().items()}
    files: Any = RandomFiles(SHAPES["Tiny"], place.device)
    tensors = RandomTensors({}, place.device)
    tensors.shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    setattr(tensors, "load", weights.__getitem__)
    setattr(files, "open_tensors", lambda: tensors)
    settings = EngineConfig(device=place.device.type, dtype="float32", cpu_kernels="off", kv_cache_mib=64)
    runner = ModelRunner.load(files, settings)
    sequence = make_sequence(0, 50)
    sequence.token_ids = torch.randint(0, 2048, (50,)).tolist()
    ours = runner.launch(prefill(runner, sequence)).logits[0]
    with torch.inference_mode():
        expected = reference(torch.tensor([sequence.token_ids], device=place.device)).logits[0, -1]
    runner.close()
    worst = float((ours - expected).abs().max())
    found = f"largest difference {worst:.6f} in float32"
    if not worst < 2e-3:
        raise Failed(found)
    return found


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

    try:
        return measure(place.device.type, SHAPES["Tiny"])
    except (ImportError, OSError) as problem:
        raise Skipped(str(problem)) from problem


def checks(place: Place) -> Iterator[tuple[str, Callable[[], str]]]:
    """Every item by its name."""
    yield "kernels sampler", partial(check_sampler, place)
    yield "kernels attention", partial(check_attention, place)
    yield "logits", partial(check_logits, place)
    for name in place.models:
        yield f"graphs {name}", partial(check_graphs, place, name)
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
