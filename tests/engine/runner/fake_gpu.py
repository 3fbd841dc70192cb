"""A GPU that is the CPU: the code that only GPUs run can be run, though not how its streams and its memory behave."""

from __future__ import annotations

import torch


class FakeGpu(str):
    """Stands where a `torch.device` would: this program sees "cuda", torch the name of the CPU."""

    type = "cuda"

    def __new__(cls) -> FakeGpu:
        return super().__new__(cls, "cpu")


class ImmediateLane:
    """Copies masks at once, and reaches every mark."""

    def __init__(self, device: FakeGpu) -> None:
        self.num_copies = 0

    def buffers(self, rows: int, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty(rows, words, dtype=torch.int32), torch.empty(rows, words, dtype=torch.int32)

    def mark(self) -> None: ...

    def copy(self, target: torch.Tensor, source: torch.Tensor, after: None) -> None:
        self.num_copies += 1
        target.copy_(source)

    def compute_after(self, mark: None) -> None: ...

    def wait(self, mark: None) -> None: ...
