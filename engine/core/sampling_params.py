"""How the next token of one request is chosen, in the order in which the settings apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of one request; raises `ValueError` naming the field for values out of range.

    Order of application to the raw logits: repetition, presence and frequency penalties; `logit_bias`;
    `min_tokens` (no stop token before them); `bad_words_token_ids`; the grammar's bitmask; temperature; `top_k`; `top_p`;
    `min_p`; one seeded draw. `temperature` 0 is greedy. `logprobs` asks for the log probability of the chosen
    token and of that many alternatives (0..20), from the raw logits before all of the above; None asks for none.
    Generation ends at a token of `stop_token_ids`, at the model's EOS tokens unless `ignore_eos`, after
    `max_tokens`, or at the end of the context.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
