"""The masks of a step on their way to the GPU, beside what it computes meanwhile.

Two buffers take turns, each on the host, pinned, and on the GPU. A copy runs on a lane of its own, so that it does not
queue behind the forward pass; what samples waits for it there.

    host      wait until the last copy from this buffer is done | write masks | start the copy
    lane      wait until what read this buffer last is done | copy
    computing forward pass ............ | wait for the copy | sample, which reads the buffer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

Mark = Any
"""A point in a stream's work that others can wait for."""


class Lane(Protocol):
    """Copies from the host to a device, in order, beside its computing stream."""

    def buffers(self, rows: int, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for `[rows, words]` int32, on the host and on the device."""
        ...

    def mark(self) -> Mark:
        """All that the computing stream has been given so far."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor, after: Mark) -> Mark:
        """Start a copy, once `after` is reached; the mark is reached when it is done."""
        ...

    def compute_after(self, mark: Mark) -> None:
        """What the computing stream is given from now on waits for `mark`."""
        ...

    def wait(self, mark: Mark) -> None:
        """Return when `mark` is reached."""
        ...


class CudaLane:
    """A stream beside torch's current one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def buffers(self, rows: int, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        host = torch.empty(rows, words, dtype=torch.int32, pin_memory=True)
        return host, torch.empty(rows, words, dtype=torch.int32, device=self._device)

    def mark(self) -> Mark:
        return torch.cuda.current_stream(self._device).record_event()

    def copy(self, target: torch.Tensor, source: torch.Tensor, after: Mark) -> Mark:
        self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        return self._stream.record_event()

    def compute_after(self, mark: Mark) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)

    def wait(self, mark: Mark) -> None:
        mark.synchronize()


@dataclass(slots=True)
class _Slot:
    """A pair of buffers; `read` is when the device's is free again, `copied` when the host's is."""

    host: torch.Tensor
    device: torch.Tensor
    read: Mark
    copied: Mark | None = None


class MaskUpload:
    """Brings masks to the device. A mask is good for what is launched until `was_read`, which must follow.

    With `memory` of the lane, int32 `[2 * R, num_words]` on the host and on the device, both buffers lie in it, one
    behind the other, so that what a graph has recorded finds them there; no step may then have more than R rows.
    """

    def __init__(self, num_words: int, lane: Lane, memory: tuple[torch.Tensor, torch.Tensor] | None = None) -> None:
        self._num_words, self._lane = num_words, lane
        self._slots: list[_Slot | None] = [None, None]
        if memory is not None:
            halves = (part.chunk(2) for part in memory)
            self._slots = [_Slot(host, device, lane.mark()) for host, device in zip(*halves, strict=True)]

    def start(self, masks: Any) -> torch.Tensor:
        """`masks` int32 `[R, words]` as a tensor on the device, which what is launched from now on waits for.

        The array may be changed at once.
        """
        self._slots.reverse()
        slot = self._slot(len(masks))
        if slot.copied is not None:
            self._lane.wait(slot.copied)
        slot.host.numpy()[: len(masks)] = masks
        rows = slice(0, len(masks))
        slot.copied = self._lane.copy(slot.device[rows], slot.host[rows], slot.read)
        self._lane.compute_after(slot.copied)
        return slot.device[rows]

    def was_read(self) -> None:
        """All that reads the last mask has been launched."""
        if (slot := self._slots[0]) is not None:
            slot.read = self._lane.mark()

    def _slot(self, rows: int) -> _Slot:
        """The one whose turn it is, large enough for `rows`."""
        slot = self._slots[0]
        if slot is not None and len(slot.host) >= rows:
            return slot
        if slot is not None and slot.copied is not None:
            self._lane.wait(slot.copied)  # before its memory goes to somebody else
        # The new memory may have been another tensor's, which the computing stream still works on: hence the mark.
        slot = self._slots[0] = _Slot(*self._lane.buffers(rows, self._num_words), read=self._lane.mark())
        return slot
