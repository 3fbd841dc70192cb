"""Who holds which KV block: reference counts, and a prefix cache over the blocks that nobody holds.

A block holds the KV of `block_size` consecutive tokens and is in exactly one of three places:

    free    holds nothing worth keeping                    taken first
    used    in the block table of `ref_count` >= 1 sequences
    cached  in nobody's table, but findable by its hash    taken next, least recently used first

A full block whose KV was computed is published under the hash of (its predecessor's hash, its token IDs), the first one
after the hash of the request's salt: equal hashes mean equal tokens from the very start. Only published blocks are
shared, and they are never written again. The last token of a prompt is always computed, so its block is never shared
in whole: the logits have to come from somewhere. Nothing here knows a tensor; a block is a number.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from engine.core.sequence import Sequence

_DIGEST_BYTES = 16  # cryptographic, so that nobody can craft a prompt that finds another's blocks


class BlockIntegrityError(Exception):
    """The books do not balance: a defect of this program, found by `check_integrity`."""


class BlockManager:
    """Gives blocks to sequences and takes them back. Engine thread alone."""

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._ref_counts = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._published: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_cached_tokens(self, sequence: Sequence) -> int:
        """How many of a waiting sequence's tokens would be found in the prefix cache now."""
        return len(self._find_prefix(sequence)) * self.block_size

    def admit(self, sequence: Sequence, num_spare: int = 0) -> bool:
        """Give a sequence without blocks all it needs for its tokens, as far as possible from the prefix cache.

        Sets its block table and `num_computed_tokens` to what was found there. False, and nothing changes, unless
        `num_spare` blocks would be left.
        """
        found = self._find_prefix(sequence)
        num_new = self.blocks_for(sequence.num_tokens) - len(found)
        num_revived = sum(self._ref_counts[block] == 0 for block in found)
        if num_new + num_spare > self.num_free - num_revived:
            return False
        for block in found:
            self._hold(block)
        sequence.block_table = found + [self._take() for _ in range(num_new)]
        sequence.num_published_blocks = len(found)
        sequence.num_computed_tokens = len(found) * self.block_size
        return True

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Extend the block table to hold `num_tokens`; false, and nothing changes, when blocks run out."""
        if num_tokens <= len(sequence.block_table) * self.block_size:
            return True
        missing = self.blocks_for(num_tokens) - len(sequence.block_table)
        if missing > self.num_free:
            return False
        sequence.block_table.extend(self._take() for _ in range(missing))
        return True

    def publish(self, sequence: Sequence) -> None:
        """Make the sequence's newly computed full blocks findable. Costs nothing when caching is off."""
        num_full = sequence.num_computed_tokens // self.block_size
        if not self.enable_prefix_caching or num_full <= sequence.num_published_blocks:
            return
        self._extend_hashes(sequence, num_full)
        for index in range(sequence.num_published_blocks, num_full):
            digest, block = sequence.block_hashes[index], sequence.block_table[index]
            if digest not in self._published:  # else a twin was computed meanwhile: this copy stays private
                self._published[digest] = block
                self._hashes[block] = digest
        sequence.num_published_blocks = num_full

    def release(self, sequence: Sequence) -> None:
        """Take back all blocks. The last ones are evicted first later on: a beginning is worth more than its end."""
        for block in reversed(sequence.block_table):
            self._ref_counts[block] -= 1
            if self._ref_counts[block]:
                continue
            if self._hashes[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None
        sequence.block_table = []
        sequence.num_published_blocks = 0
        sequence.num_computed_tokens = 0

    def reset_prefix_cache(self) -> None:
        """Forget every published block; sequences keep the ones they hold."""
        self._free.extend(self._cached)
        self._cached.clear()
        for block in self._published.values():
            self._hashes[block] = None
        self._published.clear()

    def check_integrity(self, sequences: Iterable[Sequence] = ()) -> None:
        """Raise `BlockIntegrityError` unless free + cached + used = total, used being what `sequences` hold."""
        held = [0] * self.num_blocks
        for sequence in sequences:
            for block in sequence.block_table:
                held[block] += 1
        if held != self._ref_counts:
            wrong = [block for block in range(self.num_blocks) if held[block] != self._ref_counts[block]]
            raise BlockIntegrityError(f"reference counts differ from the block tables at blocks {wrong[:8]}")
        unheld = sorted([*self._free, *self._cached])
        if unheld != [block for block in range(self.num_blocks) if not held[block]]:
            raise BlockIntegrityError("free and cached blocks are not exactly those that nobody holds")
        hashed = {digest: block for block, digest in enumerate(self._hashes) if digest is not None}
        if hashed != self._published or not all(self._hashes[block] for block in self._cached):
            raise BlockIntegrityError("published hashes and blocks disagree")

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        """The published blocks of the sequence's beginning, short of its last token."""
        found: list[int] = []
        if not self.enable_prefix_caching:
            return found
        for index in range((sequence.num_tokens - 1) // self.block_size):
            self._extend_hashes(sequence, index + 1)
            block = self._published.get(sequence.block_hashes[index])
            if block is None:
                break
            found.append(block)
        return found

    def _extend_hashes(self, sequence: Sequence, num_blocks: int) -> None:
        hashes, size = sequence.block_hashes, self.block_size
        for index in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else _digest(b"", sequence.cache_salt)
            tokens = array("I", sequence.token_ids[index * size : (index + 1) * size])
            hashes.append(_digest(parent, tokens.tobytes()))

    def _hold(self, block: int) -> None:
        self._cached.pop(block, None)
        self._ref_counts[block] += 1

    def _take(self) -> int:
        """A block with nothing in it, held once."""
        block = self._free.pop() if self._free else self._evict()
        self._ref_counts[block] = 1
        return block

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        digest, self._hashes[block] = self._hashes[block], None
        if digest is not None:
            del self._published[digest]
        return block


def _digest(parent: bytes, content: bytes) -> bytes:
    return blake2b(content, key=parent, digest_size=_DIGEST_BYTES).digest()
