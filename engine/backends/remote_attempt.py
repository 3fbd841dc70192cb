"""One request at one engine, from the POST to the end of its events or to its abort.

Whatever goes wrong on the way is an `EndpointFault`, but for what the engine says is the request's own fault.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

import aiohttp
import msgspec

from engine.backend import RequestRefusedError
from engine.backends.remote_dialect import (
    DONE,
    REFUSALS,
    Dialect,
    EndpointBusyError,
    EndpointFault,
    EndpointMisfitError,
    EngineUpdate,
    RemoteRequest,
)
from engine.backends.remote_endpoint import Endpoint, Share

_MAX_EVENT_BYTES = 8 << 20
_MAX_ERROR_BYTES = 64 << 10
_ABORT_TIMEOUT_S = 2.0
_LAST_BYTES_TIMEOUT_S = 0.1
_BUSY = frozenset({429})
_NO_ROUTE = frozenset({404, 405})
_NO_ENTRY = frozenset({401, 403})


class Attempt:
    """Reads the updates of `remote` at `endpoint`. Close it, whatever happened."""

    def __init__(self, endpoint: Endpoint, dialect: Dialect, remote: RemoteRequest) -> None:
        self.endpoint = endpoint
        self.share = Share(endpoint, len(remote.request.prompt_token_ids))
        self.is_done = False  # the engine has nothing of the request any more
        self.was_connected = True
        self._dialect = dialect
        self._remote = remote
        self._reader = dialect.reader(remote)
        self._response: aiohttp.ClientResponse | None = None
        self._was_sent = False
        self._payloads: deque[bytes] = deque()
        self._rest = b""
        self._has_finished = False
        endpoint.circuit.begin()

    async def read(self) -> EngineUpdate | None:
        """The next update; None at the end of a stream that had a finish. Sends the request at the first call."""
        try:
            if self._response is None:
                self._response = await self._open()
            while not self._payloads:
                if self.is_done or not await self._receive(self._response):
                    return None
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
                self.was_connected, self.is_done = False, True
            raise EndpointFault(f"the connection failed: {str(error) or type(error).__name__:.200}") from error
        return self._update(self._payloads.popleft())

    async def close(self) -> None:
        """Give the connection back if the stream is complete; else drop it, and have the engine drop the request."""
        self.share.close()
        response, self._response = self._response, None
        if response is not None and self.is_done:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with asyncio.timeout(_LAST_BYTES_TIMEOUT_S):
                    await response.content.readany()  # to the end, so that the connection can be used again
        if response is not None:
            response.close()  # has no effect on a connection that was given back
        if self._was_sent and not self.is_done:
            await self._abort()

    async def _open(self) -> aiohttp.ClientResponse:
        body = self._dialect.body(self._remote)
        self._was_sent = True
        response = await self.endpoint.post(self._dialect.generate_path, body)
        if response.status == 200:
            return response
        text = await response.content.read(_MAX_ERROR_BYTES)
        response.close()
        self.is_done = True
        message = _message(text) or f"status {response.status}"
        if response.status in REFUSALS:
            raise RequestRefusedError(f"the engine refused the request: {message:.1000}")
        if misfit := self._misfit(response.status):
            raise EndpointMisfitError(f"POST {self._dialect.generate_path} answers {response.status}: {misfit}")
        fault = EndpointBusyError if response.status in _BUSY else EndpointFault
        raise fault(f"it answered {response.status}: {message:.400}")

    def _misfit(self, status: int) -> str:
        if status in _NO_ROUTE:
            return self._dialect.without_route
        return "--endpoint-api-key must be the key that the engines want" if status in _NO_ENTRY else ""

    async def _receive(self, response: aiohttp.ClientResponse) -> bool:
        """Take in what came, as payloads; whether there can be more."""
        data = await response.content.readany()
        if not data:
            if not self._has_finished:
                raise EndpointFault("the stream ended without a finish")
            self.is_done = True
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_EVENT_BYTES:
            raise EndpointFault(f"an event is larger than {_MAX_EVENT_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                self._payloads.append(line[5:].strip())
        return True

    def _update(self, payload: bytes) -> EngineUpdate | None:
        if payload == DONE:
            if not self._has_finished:
                raise EndpointFault("the stream ended without a finish")
            self.is_done = True
            return None
        update = self._reader.read(payload)
        self._has_finished = self._has_finished or update.finish_reason is not None
        return update

    async def _abort(self) -> None:
        call = self._dialect.abort(self._remote)
        if call is None:
            return
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                (await self.endpoint.post(*call)).release()


def _message(body: bytes) -> str:
    """What an error response says: OpenAI's envelope, or the text."""
    try:
        document = msgspec.json.decode(body)
        detail = document.get("error", document)
        return str(detail["message"] if isinstance(detail, dict) and "message" in detail else detail)
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError):
        return body.decode("utf-8", "replace").strip()
