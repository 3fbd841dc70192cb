#!/usr/bin/env python3
"""Measure offline batches: N prompts of random tokens, each completed with 64, beside transformers in the same run.

    python scripts/bench_offline.py                                    # the embedded model against transformers
    python scripts/bench_offline.py --sequences 10000 --peer-sequences 64
    python scripts/bench_offline.py --max-num-seqs 32,64,128,256 --peer-sequences 0

The peer is `generate` with a static batch over the same weights in bfloat16; it gets as many of the prompts as
`--peer-sequences` says, and its rate is compared. The prompts have one length, so it needs no padding. Prints rates,
the ratio, the memory of this process before and after, and the load of the machine, as both suffer from it.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from engine import LLM, SamplingParams
from engine.runner.weights.model_files import open_model


def make_prompts(number: int, length: int, vocab_size: int) -> list[list[int]]:
    """Prompts that share no beginning, so that no prefix cache helps."""
    source = random.Random(0)
    return [[source.randrange(100, vocab_size - 100) for _ in range(length)] for _ in range(number)]


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure_ours(prompts: list[list[int]], max_num_seqs: int, arguments: argparse.Namespace) -> float:
    """Completion tokens a second, prefill included."""
    settings = {"kv_cache_mib": arguments.kv_cache_mib, "num_threads": arguments.threads}
    with LLM(arguments.model, max_num_seqs=max_num_seqs, decode_sequence=arguments.decode, **settings) as llm:
        params = SamplingParams(max_tokens=arguments.tokens, temperature=arguments.temperature, ignore_eos=True)
        llm.generate(prompts[:2], params, use_tqdm=False)
        llm.reset_prefix_cache()
        before = resident_mib()
        started = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())
        elapsed_s = time.perf_counter() - started
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        print(
            f"engine, max_num_seqs {max_num_seqs}: {tokens / elapsed_s:,.0f} tok/s ({len(prompts):,} sequences in "
            f"{elapsed_s:.1f} s), memory {before:,.0f} -> {resident_mib():,.0f} MiB, load {os.getloadavg()[0]:.1f}"
        )
    return tokens / elapsed_s


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


def measure_peer(prompts: list[list[int]], arguments: argparse.Namespace) -> float:
    import torch

    model = peer_model(arguments.model)
    torch.set_num_threads(arguments.threads or os.cpu_count() or 1)
    tokens, started = 0, time.perf_counter()
    for begin in range(0, len(prompts), arguments.peer_batch):
        batch = torch.tensor(prompts[begin : begin + arguments.peer_batch])
        with torch.inference_mode():
            output = model.generate(
                batch, attention_mask=torch.ones_like(batch), max_new_tokens=arguments.tokens,
                min_new_tokens=arguments.tokens, do_sample=arguments.temperature > 0, pad_token_id=0,
            )  # fmt: skip
        tokens += output.shape[0] * (output.shape[1] - batch.shape[1])
    elapsed_s = time.perf_counter() - started
    print(
        f"transformers, batch {arguments.peer_batch}: {tokens / elapsed_s:,.0f} tok/s ({len(prompts):,} sequences in "
        f"{elapsed_s:.1f} s), load {os.getloadavg()[0]:.1f}"
    )
    return tokens / elapsed_s


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
    parser.add_argument("--peer-batch", type=int, default=64)
    arguments = parser.parse_args()
    vocab_size = open_model(arguments.model).config["vocab_size"]
    prompts = make_prompts(max(arguments.sequences, arguments.peer_sequences), arguments.prompt_tokens, vocab_size)
    sizes = [int(size) for size in arguments.max_num_seqs.split(",")]
    best = max(measure_ours(prompts[: arguments.sequences], size, arguments) for size in sizes)
    if arguments.peer_sequences:
        peer = measure_peer(prompts[: arguments.peer_sequences], arguments)
        print(f"ratio {best / peer:.2f}")


if __name__ == "__main__":
    main()
