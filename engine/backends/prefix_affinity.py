"""Where the beginning of a prompt last went, so that a request can follow its prefix into that engine's cache.

A prompt is cut into blocks; each block's hash is taken over its tokens and the hash before it, so a hash stands for
everything up to its block. Remembered for each hash is the engine that last got a prompt beginning so. This is a guess
about a cache that we do not see: what is wrong about it costs time and nothing else.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

from xxhash import xxh3_64_intdigest

Owner = TypeVar("Owner")

BLOCK_TOKENS = 64


def prefix_hashes(token_ids: Sequence[int], salt: bytes = b"", block_tokens: int = BLOCK_TOKENS) -> list[int]:
    """One hash a whole block; prompts of different salts share none."""
    tokens = memoryview(token_ids if isinstance(token_ids, array) else array("I", token_ids))
    hashes, previous = [], xxh3_64_intdigest(salt)
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        previous = xxh3_64_intdigest(tokens[end - block_tokens : end], previous)
        hashes.append(previous)
    return hashes


class PrefixAffinity(Generic[Owner]):
    """Remembers the owners of the last `max_blocks` blocks used."""

    def __init__(self, max_blocks: int = 200_000) -> None:
        self._max_blocks = max_blocks
        self._owners: OrderedDict[int, Owner] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def find(self, hashes: Sequence[int]) -> tuple[Owner, int] | None:
        """Who got the longest known beginning, and how many blocks that is; None for a beginning never seen."""
        known = 0
        while known < len(hashes) and hashes[known] in self._owners:
            known += 1
        return (self._owners[hashes[known - 1]], known) if known else None

    def record(self, hashes: Sequence[int], owner: Owner) -> None:
        """Remember that `owner` got a prompt with these hashes."""
        for block in hashes:
            self._owners[block] = owner
            self._owners.move_to_end(block)
        while len(self._owners) > self._max_blocks:
            self._owners.popitem(last=False)

    def forget(self, owner: Owner) -> None:
        """Forget an owner whose cache is gone."""
        for block in [block for block, known in self._owners.items() if known == owner]:
            del self._owners[block]
