"""Which worker a body should go to: the one that has the earlier turns of its conversation in its token cache.

A conversation is known by its first user message: what stands before (model, tools, system prompt) is shared with
other conversations, what comes after differs from turn to turn. It is found in the raw bytes, without parsing them:
inside JSON text a quote is escaped, so `"role": "user"` can only be a role. A wrong guess costs time, never
correctness, and a pool gives no worker more than it gives the others because of it.
"""

from __future__ import annotations

import re
import zlib

SMALL_BODY_BYTES = 4096
"""Up to this size a body is encoded at once wherever there is room."""

_SEARCHED_BYTES = 1 << 18
_HEAD_BYTES = 1024
_USER_ROLE = re.compile(rb'"role"\s*:\s*"user"')


def affinity_of(body: bytes) -> int | None:
    """A number that is the same for all turns of a conversation; None for a body that may go anywhere."""
    if len(body) <= SMALL_BODY_BYTES:
        return None
    return zlib.crc32(_head(body))


def _head(body: bytes) -> bytes:
    """The surroundings of the first user message's role, up to the end of an object; else how the body begins."""
    role = _USER_ROLE.search(body, 0, _SEARCHED_BYTES)
    if role is None:
        return body[:_HEAD_BYTES]
    start, end = max(0, role.start() - _HEAD_BYTES), role.end() + _HEAD_BYTES
    closed = body.find(b"}", role.end(), end)
    return body[start : end if closed < 0 else closed]
