"""Random identifiers for requests and responses, and seeds. Hard to collide with, not meant to be secret."""

from __future__ import annotations

import random
from secrets import randbits

_random = random.Random(randbits(256))


def new_hex(num_bytes: int) -> str:
    """`num_bytes` random bytes in hexadecimal."""
    return _random.getrandbits(8 * num_bytes).to_bytes(num_bytes).hex()


def new_seed() -> int:
    """A seed for a request that gives none."""
    return _random.getrandbits(63)
