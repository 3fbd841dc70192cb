"""Masks on their way to a GPU whose streams run whenever they like: each draw reads its own masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from engine.core.sampling_params import SamplingParams
from engine.runner.kernels.cuda_masks import MaskUpload
from engine.runner.kernels.cuda_sampler import CudaSampler
from tests.engine.runner.driving import make_sequence, sampling_row

WORDS = 3


@dataclass
class Mark:
    reached: bool = False


@dataclass
class FakeLane:
    """Two streams whose work is done late, in turns that only `random` knows; a host that waits lets them run."""

    random: Random
    streams: dict[str, list[Callable[[], bool]]] = field(default_factory=lambda: {"computing": [], "lane": []})

    def buffers(self, rows: int, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The device's was another tensor's, which the computing stream has yet to write to."""
        host, device = torch.zeros(rows, words, dtype=torch.int32), torch.zeros(rows, words, dtype=torch.int32)
        self.compute(lambda: device.fill_(-7))
        return host, device

    def mark(self) -> Mark:
        return self._mark("computing")

    def copy(self, target: torch.Tensor, source: torch.Tensor, after: Mark) -> Mark:
        self.streams["lane"] += [lambda: after.reached, lambda: target.copy_(source) is target]
        return self._mark("lane")

    def compute_after(self, mark: Mark) -> None:
        self.streams["computing"].append(lambda: mark.reached)

    def compute(self, work: Callable[[], Any]) -> None:
        self.streams["computing"].append(lambda: (work(), True)[1])

    def wait(self, mark: Mark) -> None:
        while not mark.reached:
            self.run_some()

    def run_some(self) -> None:
        """Do the next work of one stream, if it need not wait."""
        stream = self.streams[self.random.choice(list(self.streams))]
        if stream and stream[0]():
            stream.pop(0)

    def finish(self) -> None:
        while any(self.streams.values()):
            self.run_some()

    def _mark(self, stream: str) -> Mark:
        mark = Mark()

        def reach() -> bool:
            mark.reached = True
            return True

        self.streams[stream].append(reach)
        return mark


@pytest.mark.parametrize("seed", range(40))
def test_every_draw_reads_its_own_masks_however_late_the_streams_are(seed: int) -> None:
    random = Random(seed)
    lane = FakeLane(random)
    upload, masks, seen = MaskUpload(WORDS, lane), [], []
    shared = np.zeros((9, WORDS), np.int32)  # what fills masks uses its array again at once
    for step in range(30):
        rows = shared[: random.randint(1, 2 + step // 4)]
        rows[:] = random.getrandbits(16)
        masks.append(rows.copy())
        on_device = upload.start(rows)
        lane.compute(lambda mask=on_device: seen.append(mask.clone().numpy()))  # type: ignore[misc]
        upload.was_read()
        for _ in range(random.choice((0, 0, 3, 30))):
            lane.run_some()
    lane.finish()
    assert all(np.array_equal(mask, found) for mask, found in zip(masks, seen, strict=True))


def test_a_copy_does_not_wait_for_what_is_computed_before_it() -> None:
    lane = FakeLane(Random(0))
    upload = MaskUpload(WORDS, lane)
    for _ in range(2):  # both buffers are there
        upload.start(np.zeros((1, WORDS), np.int32))
        upload.was_read()
    lane.finish()
    lane.compute(lambda: pytest.fail("the forward pass was waited for"))
    upload.start(np.ones((1, WORDS), np.int32))
    while lane.streams["lane"]:
        assert lane.streams["lane"].pop(0)()


def test_a_second_mask_need_not_wait_for_the_copy_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeLane, "wait", lambda lane, mark: pytest.fail("the host waits"))
    upload = MaskUpload(WORDS, FakeLane(Random(0)))
    for _ in range(2):
        upload.start(np.zeros((1, WORDS), np.int32))
        upload.was_read()


class Launcher:
    """A kernel that notes the mask it is given, when its time has come."""

    num_processors = 1

    def __init__(self, lane: FakeLane) -> None:
        self.lane = lane
        self.seen: list[Any] = []

    def launch(self, source: Any, kernel: str, grid: Any, threads: int, arguments: Any) -> None:
        mask = arguments[5]
        self.lane.compute(lambda: self.seen.append(None if mask is None else mask.clone().numpy()))


def test_the_sampler_sends_its_masks_by_the_lane() -> None:
    lane = FakeLane(Random(1))
    launcher = Launcher(lane)
    sampler = CudaSampler(WORDS * 32, launcher, lane)
    item, masks = sampling_row(make_sequence([1], SamplingParams())), np.arange(5 * WORDS, dtype=np.int32)
    rows = masks.reshape(5, 1, WORDS)
    for mask in rows:
        sampler.sample(torch.zeros(1, WORDS * 32), [item], mask)
    sampler.sample(torch.zeros(1, WORDS * 32), [item], None)
    lane.finish()
    assert launcher.seen[-1] is None
    assert np.array_equal(np.stack(launcher.seen[:-1]), rows)
