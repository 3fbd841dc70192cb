"""A web server that behaves as badly as asked, and names that resolve as asked. Loopback only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias
from urllib.parse import unquote

Handler: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Origin:
    """An HTTP server. `answers` maps paths to handlers; "/to?URL" redirects to URL; other paths are 404."""

    def __init__(self, address: str, answers: Mapping[str, Handler]) -> None:
        self.address = address
        self.answers = answers
        self.requests: list[str] = []
        self.heads: list[str] = []
        self.port = 0

    @asynccontextmanager
    async def running(self):  # type: ignore[no-untyped-def]
        server = await asyncio.start_server(self._serve, self.address, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            target = head.split(" ")[1]
            self.requests.append(target)
            self.heads.append(head)
            path, _, query = target.partition("?")
            await (redirect(unquote(query)) if path == "/to" else self.answers.get(path, missing))(writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def reply(
    body: bytes = b"", content_type: str = "image/png", status: int = 200, length: int | None = None, headers: str = ""
) -> Handler:
    """A handler that sends one ordinary answer; `length` may lie."""

    async def handler(writer: asyncio.StreamWriter) -> None:
        size = len(body) if length is None else length
        writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: {size}\r\n".encode())
        writer.write(f"Content-Type: {content_type}\r\n{headers}\r\n".encode() + body)

    return handler


def raw(data: bytes) -> Handler:
    """A handler that sends exactly `data`."""

    async def handler(writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return handler


def redirect(location: str, status: int = 302) -> Handler:
    return raw(f"HTTP/1.1 {status} x\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())


missing = reply(b"no", "text/plain", 404)


async def silent(writer: asyncio.StreamWriter) -> None:
    """Never answers."""
    await asyncio.sleep(600)


async def dripping(writer: asyncio.StreamWriter) -> None:
    """A byte of the body every now and then."""
    writer.write(b"HTTP/1.1 200 x\r\nContent-Type: image/png\r\nContent-Length: 100000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def dripping_head(writer: asyncio.StreamWriter) -> None:
    """Headers without end, slowly."""
    writer.write(b"HTTP/1.1 200 x\r\n")
    while not writer.is_closing():
        writer.write(b"X-More: x\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def endless(writer: asyncio.StreamWriter) -> None:
    """A chunked body without end, as fast as it is taken."""
    writer.write(b"HTTP/1.1 200 x\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        await writer.drain()


class Names:
    """A name server: every look-up of a name takes its next answer; the last one stays."""

    def __init__(self, answers: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self.answers = {name: list(answer) for name, answer in answers.items()}
        self.look_ups: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.look_ups.append(host)
        if host == "never.example":
            await asyncio.sleep(600)
        answers = self.answers.get(host.removesuffix("."))
        if answers is None:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]
