"""The wire shape of Completions requests. Unknown fields are ignored; null stands for a missing optional one."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from recipe.protocol.chat_completions.schema import U8, U32, U64, StreamOptions

Prompt: TypeAlias = str | list[str | U32 | list[U32]]
"""A text, token IDs, or a list of either; which of them a list is, is told by what it holds."""


class CompletionBody(Struct, kw_only=True):
    """A whole request. `add_special_tokens` says whether a text gets the BOS token that the model wants."""

    model: str
    prompt: Prompt
    n: U8 | None = None
    max_tokens: U32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logprobs: U8 | None = None
    seed: U64 | None = None
    stop: str | list[str] | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
