"""What an offline run gives for each prompt, in the names that such results have elsewhere in the field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Finish: TypeAlias = Literal["stop", "length", "error"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """One candidate for one place: its log probability (of the raw logits), and its rank where it is among the best.

    `decoded_token` is the token's text alone; None when the run does not decode.
    """

    logprob: float
    rank: int | None
    decoded_token: str | None


@dataclass(slots=True)
class CompletionOutput:
    """One completion.

    `token_ids` are the tokens that were generated, without the one that ended the sequence: it has no text either.
    `logprobs` has one entry for each of them, if asked for: the chosen token and the best alternatives by their IDs.
    `stop_reason` is the stop string or the ID of `stop_token_ids` that ended it; None for the model's own end.
    `finish_reason` "error" means that `error` says why this sequence alone failed.
    """

    text: str
    token_ids: list[int]
    finish_reason: Finish
    stop_reason: str | int | None = None
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    error: str | None = None
    index: int = 0


@dataclass(slots=True)
class RequestOutput:
    """One prompt with its completion: `outputs` has one entry.

    `prompt` is None for a prompt that was given as token IDs. `num_cached_tokens` of the prompt came from the prefix
    cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    finished: bool = True
