"""The CUDA kernels by name: which source holds them, and the source as one text for the run-time compiler.

Who launches a kernel says what to launch, over which grid and with which arguments, to a `Launcher`: the GPU's, or one
that runs the same source on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

FOLDER = Path(__file__).parent
COMPILE_OPTIONS = ("--std=c++17", "--fmad=true")
_INCLUDE = '#include "'

Argument = torch.Tensor | np.generic | None
"""A tensor is passed as the address of its first number, None as a null pointer, a numpy scalar as itself."""


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One source file, its kernels, and what the compiler is told to define."""

    file_name: str
    kernels: tuple[str, ...]
    defines: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The source with its headers in place, so that a cache of compiled images sees every change."""
        return _with_headers(self.file_name)

    @property
    def options(self) -> tuple[str, ...]:
        """What the run-time compiler is given."""
        return (*COMPILE_OPTIONS, *(f"-D{define}" for define in self.defines))


class Launcher(Protocol):
    """Starts kernels on the device that the tensors are on, in the order of the calls."""

    num_processors: int  # multiprocessors: how many blocks can at least run side by side

    def launch(
        self,
        source: KernelSource,
        kernel: str,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Sequence[Argument],
    ) -> None: ...


def as_scalar(argument: Argument) -> np.generic:
    """What is put in the kernel's argument list."""
    if argument is None:
        return np.uint64(0)
    return np.uint64(argument.data_ptr()) if isinstance(argument, torch.Tensor) else argument


APPLY_BITMASK = KernelSource("apply_bitmask.cu", ("apply_bitmask",))
SAMPLE_ROWS = KernelSource("sample_rows.cu", ("sample_rows",))


def paged_attention(head_dim: int, group: int, dtype: torch.dtype) -> KernelSource:
    """The attention of one decode for heads of `head_dim` numbers of `dtype`, `group` query heads a KV head."""
    kind = ("BFLOAT16",) if dtype is torch.bfloat16 else ()
    return KernelSource(
        "paged_attention.cu",
        ("attend_parts", "combine_parts"),
        (f"HEAD_DIM={head_dim}", f"GROUP={group}", *kind),
    )


def latent_attention(rank: int, rope_dim: int, dtype: torch.dtype) -> KernelSource:
    """The same over latent vectors of `rank` numbers and `rope_dim` turned ones, for any number of heads."""
    kind = ("BFLOAT16",) if dtype is torch.bfloat16 else ()
    return KernelSource(
        "latent_attention.cu", ("attend_parts", "combine_parts"), (f"RANK={rank}", f"ROPE_DIM={rope_dim}", *kind)
    )


def experts(dtype: torch.dtype) -> KernelSource:
    """The products of a few rows of `dtype` with the matrices of their experts."""
    kind = ("BFLOAT16",) if dtype is torch.bfloat16 else ()
    return KernelSource("experts.cu", ("multiply_gated", "multiply"), kind)


@cache
def _with_headers(file_name: str) -> str:
    included: set[str] = set()

    def expand(name: str) -> str:
        included.add(name)
        lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
        return "\n".join(replaced for line in lines if (replaced := place(line)) is not None) + "\n"

    def place(line: str) -> str | None:
        if line.startswith("#pragma once"):
            return None
        if not line.startswith(_INCLUDE):
            return line
        header = line.removeprefix(_INCLUDE).removesuffix('"')
        return None if header in included else expand(header)

    return expand(file_name)
