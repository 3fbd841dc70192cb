"""A launcher that runs the CUDA sources on the CPU: each is compiled once, with a C++ header that plays the GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from engine.runner.kernels.cuda_sources import FOLDER, Argument, KernelSource, as_scalar

_DRIVER = Path(__file__).parent / "cuda_driver.cpp"
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-w")


def require_cpp_compiler() -> str:
    """The C++ compiler; skips the test where there is none."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to run CUDA sources on the CPU with")
    return compiler


class Shim:
    """Implements `Launcher` with tensors on the CPU; `backwards` runs the threads of a block last to first."""

    num_processors = 4

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        self.backwards = False
        self.launched: list[tuple[str, tuple[int, int, int], int]] = []
        self.threads = threads  # of a block, whatever is asked for
        self._folder = folder

    def launch(
        self,
        source: KernelSource,
        kernel: str,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Sequence[Argument],
    ) -> None:
        self.launched.append((kernel, grid, threads))
        scalars = [as_scalar(argument) for argument in arguments]
        values = [np.asarray(scalar) for scalar in scalars]
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        shape = (ctypes.c_uint32 * 4)(*grid, self.threads or threads)
        library = build(source, self._folder)
        getattr(library, f"launch_{kernel}")(shape, int(self.backwards), pointers)


@cache
def build(source: KernelSource, folder: Path) -> ctypes.CDLL:
    """The library of one source."""
    name = "-".join([source.file_name, *source.defines]).replace("=", "")
    target = folder / f"{name}.so"
    each = " ".join(f"EACH({kernel})" for kernel in source.kernels)
    defines = [f"-D{define}" for define in source.defines]
    defines += [f'-DSOURCE="{source.file_name}"', f"-DKERNELS(EACH)={each}", f"-I{FOLDER}", f"-I{_DRIVER.parent}"]
    subprocess.run([require_cpp_compiler(), *_FLAGS, *defines, str(_DRIVER), "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))
