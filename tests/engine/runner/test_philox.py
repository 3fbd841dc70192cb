"""Philox4x32-10 against the published vectors, and the noise made from it."""

from __future__ import annotations

import pytest
import torch

from engine.runner.philox import gumbel_noise, philox4x32

# Random123's kat_vectors for philox4x32 with 10 rounds: counter, key, result.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_philox_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    words = philox4x32(tuple(torch.tensor([w]) for w in counter), tuple(torch.tensor([w]) for w in key))
    assert tuple(int(word) for word in words) == expected


def _noise(seed: int, position: int, tag: int, first: int, count: int) -> torch.Tensor:
    return gumbel_noise(torch.tensor([seed]), torch.tensor([position]), tag, torch.tensor([first]), count)[0]


def test_noise_of_an_index_does_not_depend_on_where_the_range_starts() -> None:
    assert torch.equal(_noise(7, 3, 0, 0, 64)[32:], _noise(7, 3, 0, 32, 32))


@pytest.mark.parametrize("other", [(8, 3, 0), (7, 4, 0), (7, 3, 1), (7 + 2**32, 3, 0)])
def test_seed_position_and_tag_each_change_the_noise(other: tuple[int, int, int]) -> None:
    assert not torch.equal(_noise(7, 3, 0, 0, 64), _noise(*other, 0, 64))


def test_noise_uses_the_first_word_for_the_first_index() -> None:
    uniform = (0x6627E8D5 + 0.5) / 2**32
    expected = -torch.log(-torch.log(torch.tensor(uniform, dtype=torch.float64)))
    assert torch.equal(_noise(0, 0, 0, 0, 4)[0], expected)


def test_noise_has_the_mean_and_variance_of_gumbel() -> None:
    noise = _noise(11, 0, 0, 0, 200_000)
    assert noise.isfinite().all()
    assert abs(float(noise.mean()) - 0.5772) < 0.01
    assert abs(float(noise.var()) - 1.6449) < 0.03
