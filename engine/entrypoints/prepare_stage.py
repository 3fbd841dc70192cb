"""From body to prepared request: small bodies on the event loop, all others in the worker processes.

To pack a small request, wake a worker and take its answer apart costs the loop nearly as much as to prepare the request
itself, and both processes together a quarter more. What protects the loop is the size alone: what fits into a thousand
bytes is prepared within a fraction of a millisecond, whatever it says, so there is neither a queue nor a time limit.
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
    """Prepares up to `inline_bytes` with `preparer`, and what is larger in `pool`; everything there without one."""

    def __init__(self, pool: PreparationPool, preparer: Preparer | None = None, inline_bytes: int = 0) -> None:
        self._pool = pool
        self._preparer = preparer
        self._inline_bytes = inline_bytes

    async def prepare(self, protocol: str, body: bytes, response_id: str) -> PreparedRequest | RejectedRequest:
        """What `body` asks for, or what is wrong with it. Raises what `PreparationPool.run` does."""
        if self._preparer is not None and len(body) <= self._inline_bytes:
            return self._preparer.prepare(protocol, body, response_id)
        prepared: PreparedRequest | RejectedRequest = await self._pool.run(
            prepare, protocol, body, response_id, affinity=affinity_of(body)
        )
        return prepared


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
