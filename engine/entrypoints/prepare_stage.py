"""From body to prepared request: small bodies on the event loop, all others in the worker processes.

A small request is ready sooner when it does not have to wake a worker, and what it takes of the loop is bounded by its
size: what fits into a thousand bytes is prepared within a fraction of a millisecond, whatever it says. Where there is a
CPU for the workers the loop takes one such body a turn, and those that come with it go to a worker together, which
costs the loop less than half as much each. On a single CPU they would only wait for each other.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

from engine.entrypoints.affinity import affinity_of
from engine.entrypoints.preparation import PreparationPool
from recipe.encoding.tokenizer import Tokenizer
from recipe.prepare import PrepareConfig, PreparedRequest, Preparer, RejectedRequest, prepare

INLINE_CACHE_MIB = 4
"""Memory for token IDs of text in small bodies, at most."""


class PrepareStage:
    """Prepares bodies up to `inline_bytes` with `preparer`, all others in `pool`; without a preparer all of them there.

    With `one_a_turn` the pool also takes small bodies, all but the first of each turn of the event loop.
    """

    def __init__(
        self, pool: PreparationPool, preparer: Preparer | None = None, inline_bytes: int = 0, *, one_a_turn: bool = True
    ) -> None:
        self._pool = pool
        self._preparer = preparer
        self._inline_bytes = inline_bytes
        self._one_a_turn = one_a_turn
        self._turn_is_taken = False

    async def prepare(self, protocol: str, body: bytes, response_id: str) -> PreparedRequest | RejectedRequest:
        """What `body` asks for, or what is wrong with it. Raises what `PreparationPool.run` does."""
        if self._preparer is not None and len(body) <= self._inline_bytes and not self._turn_is_taken:
            if self._one_a_turn:
                self._take_turn()
            return self._preparer.prepare(protocol, body, response_id)
        prepared: PreparedRequest | RejectedRequest = await self._pool.run(
            prepare, protocol, body, response_id, affinity=affinity_of(body)
        )
        return prepared

    def _take_turn(self) -> None:
        self._turn_is_taken = True
        asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._turn_is_taken = False


def has_cpu_for_workers() -> bool:
    """Whether this process may use more than one CPU."""
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) > 1


async def preparers_ready(pool: PreparationPool, config: PrepareConfig, tokenizer: Tokenizer | None) -> Preparer | None:
    """Wait for the workers and, with a tokenizer, for a preparer of our own. What stops both is told by the workers."""
    if tokenizer is None:
        await pool.ready()
        return None
    making = asyncio.to_thread(inline_preparer, config, tokenizer)
    readiness, preparer = await asyncio.gather(pool.ready(), making, return_exceptions=True)
    if isinstance(readiness, BaseException):
        raise readiness
    if isinstance(preparer, BaseException):
        raise preparer
    return preparer


def inline_preparer(config: PrepareConfig, tokenizer: Tokenizer) -> Preparer:
    """A preparer for the event loop's process, on a tokenizer that is there already. Its cache is small."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a few words are not worth waking threads
    small = replace(config, token_cache_mib=min(config.token_cache_mib, INLINE_CACHE_MIB))
    return Preparer(small, tokenizer)
