"""Draws by graphs, against a device whose replays launch what was recorded: the same addresses, whatever they hold."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence
from engine.runner import graph_sampler
from engine.runner.graph_sampler import GraphSampler
from engine.runner.kernels.cuda_sampler import CudaSampler
from engine.runner.kernels.cuda_sources import as_scalar
from engine.runner.sampler import PendingTokens, Sampler, tokens_of
from engine.runner.sampling_rows import ROW
from tests.engine.runner.driving import make_sequence, sampling_row
from tests.engine.runner.fake_gpu import FakeGpu, ImmediateLane
from tests.engine.runner.kernels.shim import Shim, require_cpp_compiler
from tests.engine.runner.kernels.test_cuda_masks import FakeLane
from tests.engine.runner.kernels.test_cuda_sampler import SETTINGS, assert_same_logprobs, random_mask

CPU, VOCAB, BUCKETS = torch.device("cpu"), 500, (6, 4, 2, 1)


class Recorder:
    """Launches by `inner`, and records as a GPU does: the kernel, and its arguments as the numbers that they are."""

    num_processors = 4

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._recording: list[tuple[Any, ...]] | None = None
        self.num_replays = 0

    def launch(self, source: Any, kernel: str, grid: Any, threads: int, arguments: Any) -> None:
        launched = (source, kernel, grid, threads, [as_scalar(argument) for argument in arguments])
        if self._recording is not None:
            self._recording.append(launched)
        self._inner.launch(*launched)

    def capture(self, compute: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        self._recording = recorded = []
        result = compute()
        self._recording = None

        def replay() -> None:
            self.num_replays += 1
            for launched in recorded:
                self._inner.launch(*launched)

        return result, replay


class Recorded:
    """A sampler with its graphs, and the logits that they draw from."""

    def __init__(self, inner: Any, lane: Any = None) -> None:
        self.device = Recorder(inner)
        self.logits = {bucket: torch.zeros(bucket, VOCAB) for bucket in BUCKETS}
        lane = lane or ImmediateLane(FakeGpu())
        eager = CudaSampler(VOCAB, self.device, lane)
        self.sampler = GraphSampler(eager, self.device, lane, CPU, max(BUCKETS))
        self.sampler.capture(self.device, self.logits)

    def sample(self, logits: torch.Tensor, items: list[ScheduledSequence], mask: Any = None) -> PendingTokens:
        """Draw behind a forward pass that left `logits`; rubbish lies behind them."""
        number = len(items)
        buffer = self.logits[min(bucket for bucket in BUCKETS if bucket >= number)]
        buffer.fill_(torch.nan)
        buffer[:number] = logits
        return self.sampler.sample(buffer[:number], items, mask)


@pytest.fixture
def shim(libraries: Path) -> Shim:
    require_cpp_compiler()
    return Shim(libraries, threads=64)


@pytest.mark.parametrize("seed", range(4))
def test_every_replay_draws_what_tensors_draw_whatever_the_steps_before_had(shim: Shim, seed: int) -> None:
    """Rows come and go, with edits, masks and alternatives and without; each step finds its own in the buffers."""
    random, recorded = Random(seed), Recorded(shim)
    running = [make_sequence([1, 2, 3], SETTINGS[0])]
    for step in range(25):
        if random.random() < 0.6 and len(running) < 6:
            params = random.choice(SETTINGS) if step % 8 > 3 else SamplingParams(temperature=random.random())
            running.insert(random.randint(0, len(running)), make_sequence([4, 7, step], params, seed=step))
        elif len(running) > 1:
            running.pop(random.randrange(len(running)))
        items = [sampling_row(sequence) for sequence in running]
        logits = torch.randn(len(items), VOCAB, generator=torch.Generator().manual_seed(step)) * 3
        mask = random_mask(len(items), VOCAB, step) if random.random() < 0.6 else None
        ours = recorded.sample(logits, items, mask)
        expected = Sampler(VOCAB).sample(logits.clone(), items, mask)
        assert ours.token_ids.tolist() == expected.token_ids.tolist()
        assert_same_logprobs(ours, expected)
        for sequence, token in zip(running, tokens_of(ours), strict=True):
            sequence.token_ids.append(token.token_id or 0)
    assert recorded.device.num_replays == 25


def test_more_edits_than_there_is_room_for_are_launched(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_sampler, "_MOST_EDITS", 20)
    recorded = Recorded(shim)
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0))
    for length, replays in ((10, 1), (200, 1), (20, 2)):
        items = [sampling_row(make_sequence(range(length), SamplingParams(repetition_penalty=1.5)))]
        ours = recorded.sample(logits, items).token_ids.tolist()
        assert ours == Sampler(VOCAB).sample(logits.clone(), items, None).token_ids.tolist()
        assert recorded.device.num_replays == replays


def test_a_mask_of_another_shape_is_refused(shim: Shim) -> None:
    with pytest.raises(ValueError, match=r"must have shape \[1, 16\], not \[1, 5\]"):
        Recorded(shim).sample(torch.zeros(1, VOCAB), [sampling_row(make_sequence([0]))], np.zeros((1, 5), np.int32))


class LateKernel:
    """Notes the masks of its rows when its time on the computing stream has come."""

    def __init__(self, lane: FakeLane) -> None:
        self.lane, self.masks = lane, torch.empty(0)
        self.seen: list[Any] = []

    def launch(self, source: Any, kernel: str, grid: Any, threads: int, arguments: Any) -> None:
        if not self.masks.numel():
            return  # while it is recorded
        address = int(arguments[2])
        rows = np.frombuffer((ctypes.c_char * (ROW.itemsize * grid[0])).from_address(address), ROW)
        places = rows["mask_row"].tolist()
        self.lane.compute(lambda: self.seen.append([None if p < 0 else self.masks[p].tolist() for p in places]))


@pytest.mark.parametrize("seed", range(20))
def test_every_replay_reads_its_own_masks_however_late_the_streams_are(seed: int) -> None:
    random = Random(seed)
    lane = FakeLane(random)
    kernel = LateKernel(lane)
    recorded, sent = Recorded(kernel, lane), []
    kernel.masks = recorded.sampler._bitmask
    words = np.zeros((6, -(-VOCAB // 32)), np.int32)  # what fills masks uses its array again at once
    for step in range(20):
        number = random.randint(1, 6)
        bucket = next(size for size in sorted(BUCKETS) if size >= number)
        words[:] = step + np.arange(6)[:, None] * 100
        mask = words[:number] if random.random() < 0.7 else None
        items = [sampling_row(make_sequence([1], SamplingParams())) for _ in range(number)]
        recorded.sample(torch.zeros(number, VOCAB), items, mask)
        masks = [None] * number if mask is None else mask.tolist()
        sent.append([*masks, *[None] * (bucket - number)])
        for _ in range(random.choice((0, 0, 3, 30))):
            lane.run_some()
    lane.finish()
    assert kernel.seen == sent
