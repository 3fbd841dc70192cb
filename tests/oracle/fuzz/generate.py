"""Draws the cases of a seed. Case i of a seed depends on the seed and i alone."""

import random

from tests.oracle.fuzz.conversations import Conversations
from tests.oracle.fuzz.requests import Requests
from tests.oracle.fuzz.streams import Streams
from tests.oracle.outcome import Json


def generate(seed: int | str, n: int) -> list[Json]:
    """Cases from `n` draws; a request is drawn once for two cases, convert and render."""
    return [case for i in range(n) for case in draw(seed, i)]


def draw(seed: int | str, i: int) -> list[Json]:
    rng = random.Random(f"{seed}:{i}")
    case_id, share = f"fuzz/{seed}/{i}", rng.random()
    if share < 0.4:
        request = Requests(rng).request()
        return [
            {"id": case_id, "family": "fuzz.convert", "kind": "convert", "input": request},
            {"id": f"{case_id}~render", "family": "fuzz.render", "kind": "render", "input": request},
        ]
    if share < 0.6:
        return [{"id": case_id, "family": "fuzz.direct", "kind": "direct", "input": Conversations(rng).direct()}]
    return [{"id": case_id, "family": "fuzz.stream", "kind": "stream", "input": Streams(rng).stream()}]
