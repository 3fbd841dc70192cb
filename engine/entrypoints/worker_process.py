"""A process that runs calls, on the other end of a socket that belongs to the event loop.

    parent ── [(function, arguments), ...] ──► child      one message at a time, answered by one message
    parent ◄── [CallOutcome, ...] ─────────── child       the first one says that the child is ready, or why not

The first batch is the call that makes it ready: nothing large is handed to a process while it is made, since a write to
one that dies before it reads would never end. A message is its number of parts, their lengths, and the parts: a pickle,
and after it the large byte strings of the arguments, which are neither copied nor pickled. There are no threads in
between: the loop writes and reads the socket itself, and sees the end of the process as the end of the stream.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable, Sequence
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, BinaryIO

from recipe.prepare import CallOutcome, run_batch

Call = tuple[Callable[..., Any], tuple[Any, ...]]

_COUNT = struct.Struct("=I")
_LENGTH = struct.Struct("=Q")
_LARGE_BYTES = 1 << 16


class WorkerProcess(asyncio.Protocol):
    """The parent's side. `on_reply` gets the outcomes of a batch, `on_lost` the end of the process."""

    def __init__(self, on_reply: Callable[[list[CallOutcome]], None], on_lost: Callable[[], None]) -> None:
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._process: BaseProcess | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self, context: SpawnContext, initializer: Callable[..., None], initargs: tuple[Any, ...]) -> None:
        """Start the process; it runs `initializer(*initargs)` and then answers with one outcome."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = context.Process(target=run_worker, args=(theirs,), daemon=True)
            await asyncio.to_thread(self._process.start)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        self.send([(initializer, initargs)])

    def send(self, batch: Sequence[Call]) -> None:
        """Have a batch run. Nothing may be on its way already."""
        if self._transport is not None:
            for part in _pack([(function, tuple(map(_outside, arguments))) for function, arguments in batch]):
                self._transport.write(part)

    def kill(self) -> None:
        """End the process at once; `on_lost` follows."""
        if self._process is not None and self._process.is_alive():
            self._process.kill()

    async def reap(self) -> None:
        """Wait until the process is gone."""
        if self._transport is not None:
            self._transport.close()
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.join)
            process.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (message := _split(self._received)) is not None:
            self._on_reply(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost()


def run_worker(connection: socket.socket) -> None:
    """What the process does until its parent closes the socket, or the first call fails."""
    with connection, connection.makefile("rb") as incoming:
        is_ready = False
        while (batch := _read(incoming)) is not None:
            outcomes = run_batch(batch)
            _send_all(connection, outcomes)
            is_ready = is_ready or outcomes[0].fault is None
            if not is_ready:
                return


def _outside(argument: Any) -> Any:
    """A large byte string travels beside the pickle."""
    return pickle.PickleBuffer(argument) if type(argument) is bytes and len(argument) > _LARGE_BYTES else argument


def _pack(message: Any) -> list[Any]:
    """What to write for `message`, small parts joined."""
    outside: list[pickle.PickleBuffer] = []
    parts = [pickle.dumps(message, 5, buffer_callback=outside.append), *(buffer.raw() for buffer in outside)]
    head = _COUNT.pack(len(parts)) + b"".join([_LENGTH.pack(len(part)) for part in parts])
    return [head + bytes(parts[0]), *parts[1:]]


def _split(received: bytearray) -> Any | None:
    """Take the first whole message off what was received; None while it is not whole."""
    if len(received) < _COUNT.size:
        return None
    (count,) = _COUNT.unpack_from(received)
    start = _COUNT.size + count * _LENGTH.size
    if len(received) < start:
        return None
    lengths = [_LENGTH.unpack_from(received, _COUNT.size + i * _LENGTH.size)[0] for i in range(count)]
    end = start + sum(lengths)
    if len(received) < end:
        return None
    parts = []
    for length in lengths:
        parts.append(received[start : start + length])
        start += length
    del received[:end]
    return pickle.loads(parts[0], buffers=parts[1:])


def _read(incoming: BinaryIO) -> Any | None:
    """The next message, None at the end of the stream."""
    head = incoming.read(_COUNT.size)
    if len(head) < _COUNT.size:
        return None
    (count,) = _COUNT.unpack(head)
    lengths = [_LENGTH.unpack(incoming.read(_LENGTH.size))[0] for _ in range(count)]
    parts = [incoming.read(length) for length in lengths]
    return pickle.loads(parts[0], buffers=parts[1:])


def _send_all(connection: socket.socket, outcomes: list[CallOutcome]) -> None:
    try:
        for part in _pack(outcomes):
            connection.sendall(part)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        faults = [CallOutcome(fault=f"the result cannot be pickled: {error}") for _ in outcomes]
        connection.sendall(_pack(faults)[0])
