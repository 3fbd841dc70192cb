"""Products and unpacked rows of the CPU kernels against numpy on dequantised weights, for every instruction set.

The reference quantises the activations as the kernels say they do (int8, a scale for each 32), so that what is left is
the rounding of float32 sums.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.engine.runner.kernels.building import QUANTISED, Array, PackedMatrix

SHAPES = [(1, 256, 1), (16, 512, 2), (40, 256, 3), (33, 1536, 8), (50, 256, 13)]  # rows, columns, rows of activations


def quantised(x: Array) -> Array:
    """What is left of activations after int8 in groups of 32; large groups keep what that loses, once again in int8."""
    groups = x.reshape(len(x), -1, 32)
    peaks = np.abs(groups).max(-1, keepdims=True)
    coarse = in_int8(groups)
    large = peaks > 7 * np.sqrt(np.square(groups).mean((1, 2), keepdims=True))
    return (coarse + np.where(large, in_int8(groups - coarse), 0)).reshape(x.shape)


def in_int8(groups: Array) -> Array:
    peaks = np.abs(groups).max(-1, keepdims=True)
    codes = np.rint(groups * np.where(peaks > 0, np.float32(127) / np.maximum(peaks, 1e-30), 0))
    return codes * (peaks / np.float32(127))


def rounded_to_bfloat(x: Array) -> Array:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def product(library: ctypes.CDLL, matrix: PackedMatrix, x: Array) -> Array:
    out = np.full((len(x), matrix.struct.rows), np.nan, np.float32)
    library.drive_product(matrix.struct, x.ctypes.data, len(x), out.ctypes.data)
    return out


def assert_close(found: Array, wanted: Array, weights: Array, x: Array) -> None:
    """Within what float32 sums of such products lose."""
    scale = np.abs(x).astype(np.float64) @ np.abs(weights).astype(np.float64).T + 1e-6
    assert float((np.abs(found - wanted) / scale).max()) < 3e-6


@pytest.mark.parametrize("kind", [*QUANTISED, "BF16"])
def test_products_equal_numpy_on_dequantised_weights(kind: str, instruction_set: str, driver: ctypes.CDLL) -> None:
    for seed, (rows, columns, batch) in enumerate(SHAPES):
        matrix = PackedMatrix(driver, kind, rows, columns, seed, bias=bool(seed % 2))
        x = np.random.default_rng(seed).standard_normal((batch, columns), np.float32)
        x[0, :40] = 0  # a group without any value
        x[batch // 2, columns // 2] = 70  # a group far above the others
        seen = quantised(x) if kind != "BF16" else rounded_to_bfloat(x) if instruction_set == "avx512bf16" else x
        wanted = seen.astype(np.float64) @ matrix.weights.astype(np.float64).T
        wanted += 0 if matrix.bias is None else matrix.bias
        assert matrix.inexact == 0
        assert_close(product(driver, matrix, x), wanted, matrix.weights, x)


def test_a_row_gives_the_same_bits_alone_and_in_any_batch(driver: ctypes.CDLL) -> None:
    for kind in ("Q4_1", "Q8_0", "Q4_K", "Q6_K", "BF16"):
        matrix = PackedMatrix(driver, kind, 48, 768, 1)
        x = np.random.default_rng(2).standard_normal((19, 768), np.float32)
        x[::5, 70] *= 100
        x[8:11, 200] *= 100  # most of the rows that go together
        together = product(driver, matrix, x)
        for row in range(19):
            alone = x[row : row + 1].copy()
            assert np.array_equal(product(driver, matrix, alone)[0], together[row])


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q6_K"])
def test_a_number_far_above_the_others_costs_its_group_no_precision(kind: str, driver: ctypes.CDLL) -> None:
    matrix = PackedMatrix(driver, kind, 40, 512, 5)
    x = np.random.default_rng(6).standard_normal((11, 512), np.float32)
    ordinary = np.abs(product(driver, matrix, x) - exact(matrix, x)).max()
    x[:, 100] = 300
    assert np.abs(product(driver, matrix, x) - exact(matrix, x)).max() < 2 * ordinary


def exact(matrix: PackedMatrix, x: Array) -> Array:
    return np.asarray(x.astype(np.float64) @ matrix.weights.astype(np.float64).T)


@pytest.mark.parametrize("kind", [*QUANTISED, "BF16"])
def test_rows_unpack_to_what_the_file_says(kind: str, driver: ctypes.CDLL) -> None:
    matrix = PackedMatrix(driver, kind, 35, 512, 3)
    for row in (0, 15, 16, 34):
        out = np.empty(512, np.float32)
        driver.drive_unpack(matrix.struct, row, out.ctypes.data)
        np.testing.assert_allclose(out, matrix.weights[row], rtol=2e-6, atol=1e-7)


def test_plain_columns_need_not_fill_a_group(best_driver: ctypes.CDLL) -> None:
    for columns in (2, 34, 46, 83):
        matrix = PackedMatrix(best_driver, "BF16", 19, columns, columns)
        x = rounded_to_bfloat(np.random.default_rng(1).standard_normal((5, columns), np.float32))
        assert_close(product(best_driver, matrix, x), x @ matrix.weights.T, matrix.weights, x)


def test_what_cannot_be_kept_exactly_is_reported(best_driver: ctypes.CDLL) -> None:
    block = np.zeros(34, np.uint8)
    block[:2] = np.array([60000], np.float16).view(np.uint8)  # 128 times that is no half
    tiles = np.zeros(best_driver.packed_bytes(8, 1, 32) + 64, np.uint8)
    start = tiles.ctypes.data + -tiles.ctypes.data % 64
    assert best_driver.pack_matrix(8, block.ctypes.data, 1, 32, 0, start) == 1
