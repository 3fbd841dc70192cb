"""Attention of the CPU kernels against numpy, over block sizes, head sizes, groups and positions at every border."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest

from engine.runner.kernels.cpu_library import Layer, Model
from tests.engine.runner.kernels.building import Array


@dataclass
class Case:
    """`rows` rows of a sequence from position `start` on."""

    start: int
    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int


CASES = [
    Case(0, 1, 9, 3, 64, 16),  # the first token
    Case(15, 1, 9, 3, 64, 16),  # a block just full
    Case(16, 1, 9, 3, 64, 16),  # a block just begun
    Case(0, 37, 9, 3, 64, 16),  # a prompt
    Case(30, 20, 8, 1, 128, 16),  # a chunk behind a prefix, all heads on one
    Case(31, 1, 9, 3, 64, 16),  # two runs of positions just full
    Case(32, 2, 9, 3, 64, 16),
    Case(41, 3, 4, 4, 32, 48),  # blocks of an odd number of runs
    Case(9, 12, 14, 2, 64, 64),
    Case(70, 9, 6, 2, 8, 16),  # heads smaller than a vector
    Case(33, 5, 5, 1, 80, 32),  # heads that are no whole number of vectors
    Case(3000, 2, 4, 2, 64, 16),  # a long context
]


class Attention:
    """A case with random queries, keys and values in scattered blocks."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        length = case.start + case.rows
        num_blocks = -(-length // case.block_size) + 3
        shape = (num_blocks, case.block_size, case.kv_heads, case.head_dim)
        self.case = case
        self.keys, self.values = (
            (random.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16) for _ in range(2)
        )
        self.table = random.permutation(num_blocks).astype(np.int32)
        self.queries = 2 * random.standard_normal((case.rows, case.heads * case.head_dim), np.float32)

    def compute(self, library: ctypes.CDLL, first: int = 0, rows: int | None = None, share: int = 1) -> Array:
        """Rows `first` ... of the case, `share` KV heads at a time."""
        case, rows = self.case, self.case.rows if rows is None else rows
        queries = self.queries[first : first + rows].copy()
        out = np.full_like(queries, np.nan)
        sizes = {"heads": case.heads, "kv_heads": case.kv_heads, "head_dim": case.head_dim}
        model = Model(**sizes, block_size=case.block_size, scale=case.head_dim**-0.5)
        cache = np.empty_like(self.keys), np.empty_like(self.values)
        layer = Layer(keys=cache[0].ctypes.data, values=cache[1].ctypes.data)
        slots = len(self.keys) * case.block_size
        library.drive_cache(model, layer, slots, self.keys.ctypes.data, self.values.ctypes.data)
        library.drive_attention(
            model, layer, self.table.ctypes.data, case.start + first, rows, share, queries.ctypes.data, out.ctypes.data
        )
        return out

    def reference(self) -> Array:
        case = self.case
        slots = [
            self.table[p // case.block_size] * case.block_size + p % case.block_size
            for p in range(10**4)[: case.start + case.rows]
        ]
        keys, values = (
            (stored.astype(np.uint32) << 16).view(np.float32).reshape(-1, case.kv_heads, case.head_dim)[slots]
            for stored in (self.keys, self.values)
        )
        out = np.empty((case.rows, case.heads, case.head_dim))
        for row, queries in enumerate(self.queries.reshape(case.rows, case.heads, case.head_dim)):
            for head, query in enumerate(queries.astype(np.float64)):
                kv_head, end = head * case.kv_heads // case.heads, case.start + row + 1
                scores = keys[:end, kv_head] @ query * case.head_dim**-0.5
                weights = np.exp(scores - scores.max())
                out[row, head] = weights @ values[:end, kv_head] / weights.sum()
        return out.reshape(case.rows, -1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_equals_numpy(case: Case, driver: ctypes.CDLL) -> None:
    attention = Attention(case)
    np.testing.assert_allclose(attention.compute(driver), attention.reference(), rtol=2e-4, atol=0.01)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_gives_the_same_bits_whatever_rows_and_heads_go_with_it(case: Case, driver: ctypes.CDLL) -> None:
    attention = Attention(case, seed=1)
    together = attention.compute(driver, share=case.kv_heads)
    assert np.array_equal(attention.compute(driver), together)
    for row in range(case.rows):
        assert np.array_equal(attention.compute(driver, row, 1)[0], together[row])


def test_what_a_block_holds_behind_the_sequence_is_not_seen(driver: ctypes.CDLL) -> None:
    attention = Attention(Case(18, 2, 4, 2, 64, 16))
    before = attention.compute(driver)
    attention.keys[attention.table[1], 4:] = 0x7F7F  # large enough to win, were it looked at
    attention.values[attention.table[1], 4:] = 0x7FC0  # not a number
    assert np.array_equal(attention.compute(driver), before)
