"""A safetensors file read without torch: the numbers that torch reads, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.safetensors_file import SafetensorsFile
from engine.runner.weights.tensors import BFLOAT16, SafetensorsTensors

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_floats_are_those_of_torch(tmp_path: Path, dtype: torch.dtype) -> None:
    matrix, scalar = torch.randn(5, 7).to(dtype), torch.randn(()).to(dtype)
    save_file({"matrix": matrix, "scalar": scalar, "empty": torch.empty(0, 3, dtype=dtype)}, tmp_path / "m.safetensors")
    tensors = SafetensorsTensors(tmp_path)
    for name, wanted in (("matrix", matrix), ("scalar", scalar), ("empty", torch.empty(0, 3))):
        assert tensors.floats(name).dtype == np.float32
        assert np.array_equal(tensors.floats(name), wanted.float().numpy())
    assert torch.equal(tensors.load("matrix"), matrix)


def test_a_matrix_of_bfloat16_is_handed_out_as_it_is_stored(tmp_path: Path) -> None:
    matrix = torch.randn(3, 8).to(torch.bfloat16)
    save_file({"matrix": matrix, "vector": matrix[0].clone(), "single": matrix.float()}, tmp_path / "m.safetensors")
    tensors = SafetensorsTensors(tmp_path)
    blocks = tensors.stored_blocks("matrix")
    assert blocks is not None
    assert (blocks.type_id, blocks.shape, blocks.interleaved_heads) == (BFLOAT16, (3, 8), 0)
    assert np.array_equal(blocks.data, matrix.view(torch.uint8).numpy())
    assert tensors.stored_blocks("vector") is tensors.stored_blocks("single") is None


def test_numbers_that_are_no_floats_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"codes": torch.arange(4)}, tmp_path / "m.safetensors")
    with pytest.raises(ModelLoadError, match="tensor codes is stored as I64"):
        SafetensorsFile(tmp_path / "m.safetensors").floats("codes")


def stored(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\1\0",
        b"\xff" * 20,
        stored([1, 2]),
        stored({"a": 3}),
        stored({"a": {"dtype": "F32", "shape": [2]}}),
        stored({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234"),
        stored({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, b"12345678"),
        stored({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, b"12345678"),
        stored({"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}, b"12345678"),
    ],
)
def test_a_damaged_file_is_called_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match="is damaged or cut short"):
        SafetensorsFile(path)
