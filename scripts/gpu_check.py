#!/usr/bin/env python3
"""Prove and measure on a GPU what can only be proved and measured there, in under five minutes.

    python scripts/gpu_check.py                                   # everything, on models of random weights
    python scripts/gpu_check.py --models Llama-3-8B --checks decode,prefill
    python scripts/gpu_check.py --device cpu --models Tiny        # a try of this script without a GPU

Prints one table, a line an item: PASS, FAIL or SKIP, what was found, how long it took; what is being loaded goes to the
standard error output. The exit status is 1 after a FAIL, else 2 after a SKIP, else 0. An item that takes longer than
its limit fails; what has not begun when the time is over is skipped. The letters are those of the questions:

    a  do the kernels give what torch gives?          d  tokens a second, and the share of what the card can do
    b  are the logits those of transformers?          e  what do sampling and constraints cost?
    c  do graphs change a token?                      f  time to the first token and between tokens, by server.py

Aims: decode of one sequence at 85% of the copy bandwidth, prefill at 60% of the measured matrix product, sampling under
2% of a step, constrained steps within 1% of free ones, memory within the share that was given.

On a machine without a package index, carry the wheels that it lacks, for its own Python, and put them on its path:

    pip download --no-deps --only-binary=:all: --python-version 3.12 --dest wheels \\
        msgspec llguidance gguf jsonschema-rs prometheus_client xxhash
    pip install --no-index --no-deps --target site wheels/*.whl && PYTHONPATH=site python scripts/gpu_check.py

All items need the first of these, torch, numpy and tqdm, and cupy for kernels and graphs; `logits` needs transformers;
`server` needs all six, transformers, aiohttp, uvloop and tokenizers.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

try:
    from scripts.gpu_check_kernels import check_attention, check_bitmask, check_experts, check_flashinfer, check_sampler
    from scripts.gpu_check_logits import check_logits
    from scripts.gpu_check_models import SHAPES
    from scripts.gpu_check_place import BATCHES, Failed, Place, Skipped
    from scripts.gpu_check_steps import (
        check_decode,
        check_graphs,
        check_memory,
        check_prefill,
        check_roofs,
        check_sampling,
    )
except ModuleNotFoundError as problem:
    print(f"SKIP  everything: {problem}; the start of this file says how to carry wheels along (pip download …)")
    sys.exit(2)

LIMIT_S, ITEM_LIMIT_S = 290, 90


@dataclass(frozen=True)
class Item:
    """A line of the table; `check` gives what was found."""

    letter: str
    name: str
    check: Callable[[], str]


def check_server(place: Place) -> str:
    """Time to the first token and between tokens, through server.py."""
    from scripts.gpu_check_server import measure

    place.release()
    try:
        return measure(place.device.type, SHAPES["Tiny"])
    except (ImportError, OSError) as problem:
        raise Skipped(str(problem)) from problem


def items_of(place: Place) -> Iterator[Item]:
    """Every item, the short ones first."""
    yield Item("a", "kernels bitmask", partial(check_bitmask, place))
    yield Item("a", "kernels sampler", partial(check_sampler, place))
    yield Item("a", "kernels attention", partial(check_attention, place))
    yield Item("a", "kernels experts", partial(check_experts, place))
    if find_spec("flashinfer") is not None:
        yield Item("a", "kernels flashinfer", partial(check_flashinfer, place))
    yield Item("f", "server", partial(check_server, place))
    yield Item("d", "roofs", partial(check_roofs, place))
    for name in place.models:
        yield Item("b", f"logits {name}", partial(check_logits, place, name))
    for name in place.models:
        yield Item("c", f"graphs {name}", partial(check_graphs, place, name))
        yield Item("d", f"memory {name}", partial(check_memory, place, name))
        for batch in BATCHES:
            yield Item("d", f"decode {name} x{batch}", partial(check_decode, place, name, batch))
        yield Item("d", f"prefill {name}", partial(check_prefill, place, name))
        yield Item("e", f"sampling {name}", partial(check_sampling, place, name))


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises `Failed` in what takes longer, as soon as Python has a say."""

    def end(*signal_and_frame: Any) -> None:
        raise Failed(f"not done after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(item: Item, deadline: float) -> str:
    """Do one item and print its line; PASS, FAIL or SKIP."""
    started = time.perf_counter()
    try:
        if started >= deadline:
            raise Skipped("the time is over")
        with limited(min(ITEM_LIMIT_S, deadline - started)):
            outcome, found = "PASS", item.check()
    except Skipped as reason:
        outcome, found = "SKIP", str(reason)
    except Failed as problem:
        outcome, found = "FAIL", str(problem)
    except Exception as problem:
        outcome, found = "FAIL", f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"
    print(f"{outcome}  {item.letter}  {item.name:<28} {time.perf_counter() - started:5.1f} s  {found}", flush=True)
    return outcome


def run_all(place: Place, beginnings: tuple[str, ...], limit_s: float) -> int:
    """Print the table of the items whose names begin so; the exit status."""
    started = time.perf_counter()
    card = torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else "CPU"
    print(f"{card}, torch {torch.__version__}")
    wanted = [item for item in items_of(place) if item.name.startswith(beginnings)]
    outcomes = [run(item, started + limit_s) for item in wanted]
    place.release()
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in ("PASS", "FAIL", "SKIP"))
    print(f"{counts} in {time.perf_counter() - started:.0f} s")
    return 1 if "FAIL" in outcomes else 2 if "SKIP" in outcomes else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Prove and measure the GPU path.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", default="Llama-3-8B,Qwen3-8B,DeepSeek-V2-Lite", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--checks", default="", help="beginnings of items' names, by comma (all)")
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S, help="seconds after which no item begins (%(default)s)"
    )
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("SKIP  everything: torch sees no NVIDIA GPU")
        return 2
    unknown = [name for name in given.models.split(",") if name not in SHAPES]
    if unknown:
        parser.error(f"--models: {', '.join(unknown)} is none of {', '.join(SHAPES)}")
    place = Place(torch.device(given.device), given.models.split(","))
    return run_all(place, tuple(given.checks.split(",")), given.limit_s)


if __name__ == "__main__":
    sys.exit(main())
