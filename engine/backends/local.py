"""The engine in this process: asyncio in front, one engine thread behind.

    infer() ── add ──► engine thread                    the request's stream is registered on the loop first
    infer() ◄─ deliver ── a step's outputs              one `call_soon_threadsafe` for all sequences of a step
    aclose of infer() ── cancel ──► engine thread ── released ──►   awaited to its end, whatever happens meanwhile

A stream holds what its reader has not taken yet as one output that grows: never more than the request's `max_tokens`
tokens, and a slow reader gets them in fewer chunks. Whole responses (`stream=False`) are gathered on the engine's side
and posted at the finish, but for what tells that the request has started: its admission and its first token.

The stop token is no part of a tokens chunk, as the decoder would show its spelling. It was generated and is counted,
as elsewhere in the field: the finish chunk accounts for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from engine.backend import ConstraintHandle, ConstraintRefusedError, EngineDeadError, EngineRequest, EngineStats, Health
from engine.backends.engine_thread import EngineThread
from engine.backends.output_stream import OutputStream
from engine.backends.request_record import RequestRecord
from engine.backends.shielded import to_the_end
from engine.core.engine_core import EngineCore
from engine.core.sequence import Sequence
from engine.core.sequence_output import SequenceOutput
from recipe.request import OutputConstraint
from recipe.stream.inference import InferenceChunk, PromptUsage

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ConstraintCompiler(Protocol):
    """Compiles constraints off the event loop, for the grammars that this engine's bitmask filler knows."""

    async def compile(self, constraint: OutputConstraint) -> ConstraintHandle:
        """Raises `ConstraintRefusedError` naming what cannot be enforced."""
        ...


class LocalBackend:
    """A `Backend` over an `EngineCore` that lives in its own thread.

    `observer` is called on the event loop with the `RequestRecord` of every request that has ended, however it did;
    `on_death` once with the reason, after every waiter was told, when the engine ends without having been closed.
    """

    def __init__(
        self,
        make_core: Callable[[], EngineCore],
        *,
        compiler: ConstraintCompiler | None = None,
        system_fingerprint: str | None = None,
        observer: Callable[[RequestRecord], None] | None = None,
        on_death: Callable[[str], None] | None = None,
    ) -> None:
        self.compiler = compiler
        self.system_fingerprint = system_fingerprint
        self.observer = observer
        self.on_death = on_death
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[Sequence, OutputStream] = {}  # the engine thread's: who gets a sequence's outputs
        self._open: set[OutputStream] = set()  # the loop's: whom to tell when the engine ends
        self._replies: set[asyncio.Future[Any]] = set()  # the loop's: calls that wait for the engine thread
        self._end: str | None = None  # why there is no engine any more
        self._thread = EngineThread(make_core, self._post_outputs, self._post_end)

    @classmethod
    def start(cls, make_core: Callable[[], EngineCore], **options: Any) -> LocalBackend:
        """Start the engine thread, which calls `make_core`; no event loop is needed yet. See `started`."""
        return cls(make_core, **options)

    async def started(self) -> EngineCore:
        """Wait until the engine is ready, or raise what kept it from that. Look at the core, but do not call it."""
        self._loop = asyncio.get_running_loop()
        return await asyncio.shield(asyncio.wrap_future(self._thread.core))

    async def infer(self, request: EngineRequest) -> AsyncGenerator[InferenceChunk, None]:
        """Yield the chunks of `request`; see `Backend.infer`."""
        stream = self._submit(request)
        is_ready = False
        try:
            while not stream.is_drained:
                output = await stream.take()
                if not is_ready and (output.token_ids or output.error is None):
                    is_ready = True
                    yield self._ready_chunk(output.sequence)
                for chunk in _chunks(output):
                    yield chunk
                if output.error is not None:
                    raise output.error
        finally:
            try:
                await self._release(stream)
            finally:
                self._report(stream)

    async def compile(self, constraint: OutputConstraint) -> ConstraintHandle:
        """Compile `constraint` off the event loop; raises `ConstraintRefusedError`."""
        if self.compiler is None:
            raise ConstraintRefusedError("this engine was started without constrained decoding")
        return await self.compiler.compile(constraint)

    def health(self) -> Health:
        """Whether the engine has started and lives."""
        if self._end is not None:
            return Health(ok=False, reason=self._end)
        if not self._thread.core.done():
            return Health(ok=False, reason="the engine is starting")
        return Health(ok=True)

    def stats(self) -> EngineStats:
        """The engine's counters at this moment; zeros before it has started."""
        core = self._thread.core
        return core.result().stats() if core.done() and core.exception() is None else EngineStats()

    async def call(self, function: Callable[[EngineCore], T]) -> T:
        """Run `function` on the engine thread between two steps; what it raises is raised here.

        Waits to the end, also when cancelled meanwhile; raises `EngineDeadError` when the engine ends first.
        """
        self._check_alive()
        reply: asyncio.Future[T] = self._running_loop().create_future()

        def command(core: EngineCore) -> None:
            try:
                result = function(core)
            except Exception as error:
                self._post(_settle, reply, error)
            else:
                self._post(_settle, reply, None, result)

        self._replies.add(reply)
        self._thread.submit(command)
        try:
            return await to_the_end(reply)
        finally:
            self._replies.discard(reply)

    async def reset_prefix_cache(self) -> None:
        """Forget the KV of finished sequences."""
        await self.call(EngineCore.reset_prefix_cache)

    async def aclose(self) -> None:
        """Stop the engine after the step it is in; open requests end with `EngineDeadError`. Idempotent."""
        self._running_loop()
        self._thread.stop()
        await to_the_end(asyncio.ensure_future(asyncio.to_thread(self._thread.join)))
        self._bury()

    # On the event loop.

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        return self._loop

    def _check_alive(self) -> None:
        if self._end is not None:
            raise EngineDeadError(self._end)

    def _submit(self, request: EngineRequest) -> OutputStream:
        self._check_alive()
        stream = OutputStream(request, self._running_loop())
        self._open.add(stream)
        self._thread.submit(lambda core: self._add(core, stream))
        return stream

    async def _release(self, stream: OutputStream) -> None:
        """Free what the request holds in the engine, if it has not ended by itself."""
        self._open.discard(stream)
        if not stream.has_ended:
            with suppress(EngineDeadError):  # a dead engine holds nothing
                await self.call(lambda core: self._cancel(core, stream))

    def _ready_chunk(self, sequence: Sequence) -> InferenceChunk:
        usage = PromptUsage(
            prompt_tokens=sequence.num_prompt_tokens, prompt_cache_hit_tokens=sequence.num_cached_tokens
        )
        return InferenceChunk.ready(prompt_usage=usage, system_fingerprint=self.system_fingerprint)

    def _report(self, stream: OutputStream) -> None:
        if self.observer is None:
            return
        try:
            self.observer(stream.record())
        except Exception:
            logger.exception("the observer of requests failed")

    def _bury(self, on_death: Callable[[str], None] | None = None) -> None:
        """Tell everyone who waits that the engine has ended, and then `on_death`."""
        reason = self._end or "the engine was stopped"
        for stream in self._open:
            stream.fail(EngineDeadError(reason))
        for reply in self._replies:
            _settle(reply, EngineDeadError(reason))
        if on_death is not None:
            on_death(reason)

    # On the engine thread.

    def _add(self, core: EngineCore, stream: OutputStream) -> None:
        try:
            stream.sequence = core.add_request(stream.request)
        except Exception as error:
            self._post(stream.fail, error)
        else:
            self._streams[stream.sequence] = stream

    def _cancel(self, core: EngineCore, stream: OutputStream) -> None:
        if stream.sequence is not None:
            self._streams.pop(stream.sequence, None)
            core.cancel(stream.sequence)

    def _post_outputs(self, outputs: list[SequenceOutput]) -> None:
        deliveries = []
        for output in outputs:
            stream = self._streams.get(output.sequence)
            if stream is None:
                continue  # cancelled
            if output.is_last:
                del self._streams[output.sequence]
            if (due := stream.due(output)) is not None:
                deliveries.append((stream, due))
        if deliveries:
            self._post(_deliver, deliveries)

    def _post_end(self, death: BaseException | None) -> None:
        self._end = "the engine was stopped" if death is None else f"the engine died: {type(death).__name__}: {death}"
        self._streams.clear()
        self._post(self._bury, self.on_death if death is not None else None)

    def _post(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call `callback` on the event loop. Without a running loop there is nobody to tell."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(callback, *arguments)


def _chunks(output: SequenceOutput) -> Iterator[InferenceChunk]:
    if output.token_ids:
        logprobs = None if output.logprobs is None else [(entry.logprob, entry.top) for entry in output.logprobs]
        yield InferenceChunk.tokens(output.token_ids, logprobs)
    if output.finish_reason is not None:
        yield InferenceChunk.finish(output.finish_reason, token_count=output.num_hidden_tokens)


def _deliver(deliveries: list[tuple[OutputStream, SequenceOutput]]) -> None:
    for stream, output in deliveries:
        stream.push(output)


def _settle(reply: asyncio.Future[Any], error: Exception | None, result: Any = None) -> None:
    if reply.done():
        return
    if error is None:
        reply.set_result(result)
    else:
        reply.set_exception(error)
