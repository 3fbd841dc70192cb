"""Log probabilities in the older shape of Completions: parallel lists, one entry a token."""

from __future__ import annotations

from typing import Any

import msgspec


class Logprobs(msgspec.Struct):
    """`text_offset` is where in the generated text each token begins, in code points.

    `top_logprobs` holds the best alternatives and the chosen token, by their texts.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None]]
    text_offset: list[int]

    def __add__(self, other: Logprobs) -> Logprobs:
        return Logprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )


class LogprobsWriter:
    """Writes the log probabilities of one text, which arrive as items of the newer shape, in the older one."""

    __slots__ = ("_offset",)

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset

    def write(self, items: str) -> Logprobs:
        """`items` is what stands between the brackets of a JSON array."""
        written = Logprobs([], [], [], [])
        for item in msgspec.json.decode(f"[{items}]"):
            written.tokens.append(item["token"])
            written.token_logprobs.append(item["logprob"])
            written.top_logprobs.append(_alternatives(item))
            written.text_offset.append(self._offset)
            self._offset += sum(byte & 0xC0 != 0x80 for byte in item["bytes"])  # characters that begin here
        return written


def _alternatives(item: dict[str, Any]) -> dict[str, float | None]:
    best = {other["token"]: other["logprob"] for other in item["top_logprobs"]}
    return {**best, item["token"]: item["logprob"]}
