"""What a request asks of the inference: sampling parameters, and what constrains the output.

The first fields of `InferenceOptions` are those of the protocols proper. Those after them come from extensions; at
their defaults they say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class OutputConstraint(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What constrained decoding would enforce on the output; describing it is all that happens here.

    `kind` is `json`, `regex`, `tool_call` or `tool_call_required`, and with extensions `choice` or `grammar`. `schema`
    is the schema as compact JSON, the regular expression, the tools as a compact JSON array of Chat Completions
    function tools (deferred ones with `"defer_loading":true`), a JSON array of strings, the grammar, or "" for any JSON
    value. `single_call` says that one call is the most.

    Conversion leaves the rest to whoever knows the model. `tool_markup` names how it writes tool calls. `begins_after`
    is the marker that ends the reasoning which the prompt leaves open: the constraint holds behind it, else at once.
    Where the model itself opens its reasoning, `reasoning_start` is the marker it may begin with. `in_tool_block` says
    that the prompt opens the block of calls.
    """

    kind: str
    schema: str
    tool_markup: str = ""
    begins_after: str = ""
    reasoning_start: str = ""
    in_tool_block: bool = False
    single_call: bool = False


class InferenceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling parameters of a request; None where it says nothing and the engine's default applies.

    Conversion always resolves `temperature` and `top_p`. `max_tokens` is as requested: see
    `ConversationRequest.resolve_max_tokens`. `seed` is in [0, 2^63), `top_logprobs` in [0, 20].
    """

    temperature: float | None
    top_p: float | None
    max_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    seed: int | None = None
    output_constraint: OutputConstraint | None = None
    n: int = 1
    top_k: int = 0
    """The number of most likely tokens to draw from; 0 is all."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    """What to add to the logits of token IDs."""
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    """Texts that must not appear in the output; as tokens only once someone knows the vocabulary."""
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    ignore_eos: bool = False
    priority: int = 0
    """Lower is sooner."""
    cache_salt: str = ""
    """Requests share cached prompt beginnings only with those of the same salt."""


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a model samples with where a request says nothing; the fields are those of `InferenceOptions`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
