#!/usr/bin/env python3
"""Measure offline batches: N prompts of random tokens, each completed with 64, beside transformers in the same run.

    python scripts/bench_offline.py                                    # the embedded model against transformers
    python scripts/bench_offline.py --sequences 10000 --peer-sequences 256 --peer-batch 64,128,256
    python scripts/bench_offline.py --max-num-seqs 32,64,128,256 --peer-sequences 0

The peer is `generate` with a static batch over the same weights in bfloat16; it gets as many of the prompts as
`--peer-sequences` says, and the rate of its best batch is compared with that of our best. The prompts have one length,
so it needs no padding. Prints rates by the clock and by CPU seconds (the fairer ones on a busy machine, with
`--threads 1`, where nobody spins), the ratio, and the memory of this process: before, after a quarter of the time (by
then the KV cache has been written), and at the end, with the engine still there.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from engine import LLM, SamplingParams
from engine.runner.weights.model_files import open_model


def make_prompts(number: int, length: int, vocab_size: int) -> list[list[int]]:
    """Prompts that share no beginning, so that no prefix cache helps."""
    source = random.Random(0)
    ids = range(vocab_size // 4, vocab_size)  # ordinary tokens
    return [source.choices(ids, k=length) for _ in range(number)]


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class MemoryWatch:
    """Looks at this process's memory every second, from when it was made until `stop`."""

    def __init__(self) -> None:
        self._samples_mib = [resident_mib()]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> str:
        self._stopped.set()
        self._thread.join()
        seen = [*self._samples_mib, resident_mib()]
        return f"{seen[0]:,.0f} -> {seen[len(seen) // 4]:,.0f} -> {seen[-1]:,.0f} MiB"

    def _look(self) -> None:
        while not self._stopped.wait(1):
            self._samples_mib.append(resident_mib())


class Stopwatch:
    """Seconds of the clock and of this process's CPUs since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def rates(self, tokens: int) -> Rates:
        return Rates(tokens, time.perf_counter() - self._wall, time.process_time() - self._cpu)


@dataclass(frozen=True)
class Rates:
    """What a run made of its time."""

    tokens: int
    wall_s: float
    cpu_s: float

    @property
    def per_second(self) -> float:
        return self.tokens / self.wall_s

    @property
    def per_cpu_second(self) -> float:
        return self.tokens / self.cpu_s

    def __str__(self) -> str:
        return (
            f"{self.per_second:,.0f} tok/s, {self.per_cpu_second:,.0f} tok per CPU second ({self.tokens:,} tokens in "
            f"{self.wall_s:.1f} s, load {os.getloadavg()[0]:.1f})"
        )


def measure_ours(prompts: list[list[int]], max_num_seqs: int, arguments: argparse.Namespace) -> Rates:
    """Completion tokens, prefill included."""
    settings = {"kv_cache_mib": arguments.kv_cache_mib, "num_threads": arguments.threads}
    with LLM(arguments.model, max_num_seqs=max_num_seqs, decode_sequence=arguments.decode, **settings) as llm:
        params = SamplingParams(max_tokens=arguments.tokens, temperature=arguments.temperature, ignore_eos=True)
        llm.generate(prompts[:2], params, use_tqdm=False)
        llm.reset_prefix_cache()
        memory, watch = MemoryWatch(), Stopwatch()
        outputs = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())
        rates = watch.rates(sum(len(output.outputs[0].token_ids) for output in outputs))
        print(f"engine, max_num_seqs {max_num_seqs}: {rates}, memory {memory.stop()}")
    return rates


def peer_model(model: str | None) -> Any:
    """The same weights in transformers, from whatever file they are in."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    files = open_model(model)
    settings = {"model_type": "llama", **files.config}
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    tensors = files.open_tensors()
    state = {name: tensors.load(name).to(torch.bfloat16) for name in tensors.names}
    missing, surplus = made.load_state_dict(state, strict=False)
    if surplus or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"the peer lacks {missing} and does not know {surplus}")
    made.tie_weights()
    return made


def measure_peer(model: Any, prompts: list[list[int]], batch_size: int, arguments: argparse.Namespace) -> Rates:
    """The same tokens by static batches."""
    import torch

    torch.set_num_threads(arguments.threads or os.cpu_count() or 1)
    settings: dict[str, Any] = {"max_new_tokens": arguments.tokens, "min_new_tokens": arguments.tokens}
    model.generate(torch.tensor(prompts[:2]), max_new_tokens=2, pad_token_id=0)
    tokens, watch = 0, Stopwatch()
    for begin in range(0, len(prompts), batch_size):
        batch = torch.tensor(prompts[begin : begin + batch_size])
        output = model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=arguments.temperature > 0,
            pad_token_id=0,
            **settings,
        )
        tokens += output.shape[0] * (output.shape[1] - batch.shape[1])
    rates = watch.rates(tokens)
    print(f"transformers, batch {batch_size}: {rates}")
    return rates


def sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: the embedded model")
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64, help="generated a sequence")
    parser.add_argument("--prompt-tokens", type=int, default=40)
    parser.add_argument(
        "--max-num-seqs", default="256", help="sequences in a step; several, by commas, one after another"
    )
    parser.add_argument("--kv-cache-mib", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--decode", action="store_true", help="make texts of the tokens, too")
    parser.add_argument("--peer-sequences", type=int, default=64, help="0 leaves the peer out")
    parser.add_argument("--peer-batch", default="64", help="sequences in a batch; several, by commas")
    arguments = parser.parse_args()
    vocab_size = open_model(arguments.model).config["vocab_size"]
    prompts = make_prompts(max(arguments.sequences, arguments.peer_sequences), arguments.prompt_tokens, vocab_size)
    ours = [measure_ours(prompts[: arguments.sequences], size, arguments) for size in sizes(arguments.max_num_seqs)]
    if arguments.peer_sequences:
        model, given = peer_model(arguments.model), prompts[: arguments.peer_sequences]
        theirs = [measure_peer(model, given, size, arguments) for size in sizes(arguments.peer_batch)]
        best, peer = (max(runs, key=lambda run: run.per_second) for runs in (ours, theirs))
        by_clock, by_cpu = best.per_second / peer.per_second, best.per_cpu_second / peer.per_cpu_second
        print(f"ratio {by_clock:.2f} by the clock, {by_cpu:.2f} by CPU seconds")


if __name__ == "__main__":
    main()
