"""Random identifiers for requests and responses, and seeds. Hard to collide with, not meant to be secret."""

from __future__ import annotations

import random
from secrets import randbits

_random = random.Random(randbits(256))


def new_hex(num_bytes: int) -> str:
    """`num_bytes` random bytes in hexadecimal."""
    return f"{_random.getrandbits(8 * num_bytes):0{2 * num_bytes}x}"


def new_seed() -> int:
    """A seed for a request that gives none."""
    return _random.getrandbits(63)
