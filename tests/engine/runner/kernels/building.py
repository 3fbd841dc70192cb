"""Builds the test driver of the CPU kernels, as a library or as a program, and random weights in the file's formats."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine.runner.kernels import build
from engine.runner.kernels.cpu_library import Draws, Layer, Matrix, Model, load_library
from engine.runner.weights.tensors import BFLOAT16

DRIVER = Path(__file__).parent / "cpu_driver.c"
QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")

Array = np.ndarray[Any, Any]


def require_compiler() -> str:
    """The C compiler; skips the test where there is none."""
    try:
        return build.find_compiler()
    except build.BuildError as problem:
        pytest.skip(str(problem))


def runnable_sets() -> list[str]:
    """The instruction sets that this machine can run, from plain to best."""
    return list(build.all_sets()[: build.all_sets().index(build.best_set()) + 1])


def compile_driver(instruction_set: str, target: Path, *flags: str) -> Path:
    """The driver and the library's own sources in one, as `flags` say."""
    number = list(build.SETS).index(instruction_set)
    defines = [
        f"-DSET={instruction_set}",
        f"-DSET_ID={number}",
        f"-DHAS_{instruction_set.upper()}",
        f"-I{build.FOLDER}",
    ]
    others = [str(build.FOLDER / name) for name in ("cpu_sample.c", *build.OTHER_SOURCES)]
    common = [flag for flag in build.COMMON_FLAGS if not flag.startswith("-O")]
    command = [require_compiler(), *common, *flags, *defines, *build.SETS[instruction_set], str(DRIVER), *others]
    subprocess.run([*command, "-o", str(target), "-lm", "-lpthread"], check=True, capture_output=True, text=True)
    return target


def load_driver(instruction_set: str, folder: Path) -> ctypes.CDLL:
    """The driver as a library for one instruction set."""
    library = load_library(compile_driver(instruction_set, folder / f"{instruction_set}.so", "-O1", "-shared"))
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    library.drive_product.argtypes = [ctypes.POINTER(Matrix), pointer, number, pointer]
    library.drive_draws.argtypes = [ctypes.POINTER(Draws), number]
    library.drive_unpack.argtypes = [ctypes.POINTER(Matrix), number, pointer]
    library.drive_cache.argtypes = [ctypes.POINTER(Model), ctypes.POINTER(Layer), number, pointer, pointer]
    library.drive_attention.argtypes = [
        ctypes.POINTER(Model),
        ctypes.POINTER(Layer),
        pointer,
        number,
        number,
        number,
        pointer,
        pointer,
    ]
    return library


class PackedMatrix:
    """A random matrix in one of the file's formats: packed for the kernels, and dequantised for the reference."""

    def __init__(self, library: ctypes.CDLL, kind: str, rows: int, columns: int, seed: int, bias: bool = False) -> None:
        random = np.random.default_rng(seed)
        if kind == "BF16":
            bits = (random.standard_normal((rows, columns), np.float32).view(np.uint32) >> 16).astype(np.uint16)
            blocks, type_id = bits.view(np.uint8), BFLOAT16
            self.weights = (bits.astype(np.uint32) << 16).view(np.float32)
        else:
            blocks, type_id = random_blocks(random, kind, rows, columns), int(gguf.GGMLQuantizationType[kind])
            self.weights = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
        self.bias = random.standard_normal(rows, np.float32) if bias else None
        self._room = np.zeros(library.packed_bytes(type_id, rows, columns) + 64, np.uint8)
        start = -self._room.ctypes.data % 64
        self._tiles = self._room[start:]
        self.inexact = library.pack_matrix(type_id, blocks.ctypes.data, rows, columns, 0, self._tiles.ctypes.data)
        self.struct = Matrix(
            tiles=self._tiles.ctypes.data,
            bias=None if self.bias is None else self.bias.ctypes.data,
            kind=library.packed_kind(type_id),
            rows=rows,
            columns=columns,
        )


def random_blocks(random: np.random.Generator, kind: str, rows: int, columns: int) -> Array:
    """Blocks with random codes and sane scales, uint8 `[rows, bytes a row]`."""
    quantisation = gguf.GGMLQuantizationType[kind]
    length, size = gguf.GGML_QUANT_SIZES[quantisation]
    blocks = random.integers(0, 256, (rows * columns // length, size), np.uint8)
    places = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}.get(kind, (0,))
    for place in places:
        scales = random.standard_normal(len(blocks)).astype(np.float16) * np.float16(0.01)
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)
