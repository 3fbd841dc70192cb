"""The body of POST /inference/v1/generate: token IDs and sampling settings, in vLLM's words.

Beyond them there are `bad_words_token_ids`, and `output_constraint`, which is what our own fronts send.
A field that is not known here is refused by its name.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from engine.core.sampling_params import SamplingParams
from engine.entrypoints.errors import ApiError
from recipe.request import OutputConstraint

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """At most one of them is given."""

    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None

    def constraint(self) -> OutputConstraint | None:
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if len(given) > 1:
            raise ApiError(400, f"structured_outputs must hold one of {', '.join(given)}")
        for name, value in given.items():
            return OutputConstraint(name, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        return None


class TokenSampling(msgspec.Struct, forbid_unknown_fields=True):
    """Ranges are those of the engine's `SamplingParams`."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[TokenId, float] = {}
    min_tokens: int = 0
    bad_words_token_ids: list[list[TokenId]] = []
    stop_token_ids: list[TokenId] = []
    ignore_eos: bool = False
    logprobs: int | None = None
    structured_outputs: StructuredOutputs | None = None
    output_constraint: OutputConstraint | None = None

    def constraint(self) -> OutputConstraint | None:
        if self.structured_outputs is None:
            return self.output_constraint
        if self.output_constraint is not None:
            raise ApiError(400, "structured_outputs and output_constraint exclude each other")
        return self.structured_outputs.constraint()

    def params(self, default_seed: int) -> SamplingParams:
        """Raises a 400 `ApiError` naming the field that is out of range."""
        fields = msgspec.structs.asdict(self)
        del fields["structured_outputs"], fields["output_constraint"]
        fields["top_k"] = max(0, self.top_k)  # -1 is all, too
        fields["seed"] = default_seed if self.seed is None else self.seed
        try:
            return SamplingParams(**fields)
        except ValueError as error:
            raise ApiError(400, f"sampling_params: {error}") from None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False


class TokenRequest(msgspec.Struct, forbid_unknown_fields=True):
    """One request. A lower `priority` runs first; `cache_salt` separates prefix caches."""

    token_ids: Annotated[list[TokenId], msgspec.Meta(min_length=1)]
    sampling_params: TokenSampling = msgspec.field(default_factory=TokenSampling)
    request_id: str | None = None
    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    priority: int = 0
    cache_salt: str | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether the stream is to tell usage; a whole response always does."""
        return self.stream_options is not None and self.stream_options.include_usage


_DECODER = msgspec.json.Decoder(TokenRequest)


def parse_token_request(body: bytes) -> TokenRequest:
    """Raises a 400 `ApiError` that names the place of what is wrong."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the request cannot be read: {error}") from None
