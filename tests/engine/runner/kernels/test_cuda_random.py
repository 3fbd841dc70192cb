"""The kernels' random numbers, run on the CPU, against the published vectors and the noise made with tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from engine.runner.kernels.cuda_sources import KernelSource
from engine.runner.philox import gumbel_noise
from tests.engine.runner.kernels.shim import Shim, require_cpp_compiler
from tests.engine.runner.test_philox import VECTORS

RANDOM = KernelSource("cuda_random.cu", ("philox_words", "noise_of_indices"))


def test_philox_gives_the_published_words(libraries: Path) -> None:
    require_cpp_compiler()
    words = torch.from_numpy(np.asarray([[*counter, *key] for counter, key, _ in VECTORS], np.uint32).view(np.int32))
    Shim(libraries).launch(RANDOM, "philox_words", (1, 1, 1), len(VECTORS), (words,))
    assert [tuple(row) for row in words.numpy().view(np.uint32)[:, :4].tolist()] == [words for _, _, words in VECTORS]


def test_noise_is_that_of_the_tensors(libraries: Path) -> None:
    require_cpp_compiler()
    seed, position, tag = 0x9E3779B97F4A7C15 >> 1, 70_001, 1
    noise = torch.empty(1024, dtype=torch.float64)
    arguments = (noise, np.uint64(seed), np.int32(position), np.int32(tag))
    Shim(libraries).launch(RANDOM, "noise_of_indices", (16, 1, 1), 64, arguments)
    expected = gumbel_noise(torch.tensor([seed]), torch.tensor([position]), tag, torch.tensor([0]), 1024)
    torch.testing.assert_close(noise, expected[0], rtol=1e-14, atol=1e-14)
