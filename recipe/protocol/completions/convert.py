"""Completions requests: from a body to checked settings and a list of prompts, rule by rule in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from recipe.errors import ConversionError
from recipe.protocol.body import BodyDecoder
from recipe.protocol.completions.schema import CompletionBody
from recipe.protocol.completions.schema import Prompt as RequestedPrompt
from recipe.protocol.constraint import TEXT, format_constraint
from recipe.protocol.extension_fields import extended, extension_fields
from recipe.protocol.known_fields import COMPLETIONS_REFUSED, RefusedFields
from recipe.protocol.sampling import with_extensions
from recipe.protocol.structured_outputs import with_structured_outputs
from recipe.protocol.thinking import Thinking
from recipe.protocol.validation import RequestedInference, check_stop_strings, out_of_range, resolve_inference
from recipe.request import ConversionOptions, InferenceOptions, ModelVersion

TextOrIds: TypeAlias = str | list[int]

MAX_CHOICES = 128
"""The most texts that one request may ask for: prompts times `n`."""

DEFAULT_MAX_TOKENS = 16
"""What a request that sets none gets, as everywhere with this protocol."""

_DECODER = BodyDecoder(extended(CompletionBody, COMPLETIONS_REFUSED))
_REFUSED = RefusedFields(COMPLETIONS_REFUSED)
_NO_THINKING = Thinking(enabled=False, effort=None)


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A checked request. Every prompt is a text or token IDs; each is continued `inference_options.n` times."""

    model: str
    prompts: Sequence[TextOrIds]
    inference_options: InferenceOptions
    stop_strings: Sequence[str]
    stream: bool
    reports_usage: bool
    echo: bool
    adds_bos: bool

    @classmethod
    def from_body(cls, body: bytes, options: ConversionOptions) -> CompletionRequest:
        """Decode and check a body. ValueError for another shape, ConversionError for a broken rule."""
        decoded: CompletionBody = _DECODER.decode(body)
        options.model_version(decoded.model)
        _REFUSED.check(decoded)
        prompts = listed_prompts(decoded.prompt)
        if decoded.echo and decoded.logprobs is not None:
            raise ConversionError("echo is not supported together with logprobs.")
        if decoded.stream_options is not None and not decoded.stream:
            raise ConversionError("stream_options should be set along with stream = true")
        usage_asked = decoded.stream_options is not None and decoded.stream_options.include_usage
        return cls(
            model=decoded.model,
            prompts=prompts,
            inference_options=_inference(decoded, len(prompts), options),
            stop_strings=check_stop_strings(decoded.stop),
            stream=bool(decoded.stream),
            reports_usage=bool(usage_asked) or not decoded.stream,
            echo=bool(decoded.echo),
            adds_bos=decoded.add_special_tokens is not False,
        )


def listed_prompts(prompt: RequestedPrompt) -> list[TextOrIds]:
    """The prompts as a list; ConversionError for none, an empty one, or a list that mixes kinds."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(part) for part in prompt}
    if len(kinds) != 1:
        raise ConversionError("Invalid prompt: it must be a string, token IDs, or a non-empty list of either")
    if kinds == {int}:
        return [[part for part in prompt if isinstance(part, int)]]
    for index, part in enumerate(prompt):
        if part == []:
            raise ConversionError(f"Invalid prompt[{index}]: it has no tokens")
    return [part for part in prompt if not isinstance(part, int)]


def _inference(body: CompletionBody, num_prompts: int, options: ConversionOptions) -> InferenceOptions:
    number = 1 if body.n is None else body.n
    if not 1 <= number * num_prompts <= MAX_CHOICES:
        raise out_of_range("n", f"[1, {MAX_CHOICES}] for all prompts of a request together")
    requested = RequestedInference(
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        temperature=body.temperature,
        top_p=body.top_p,
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs,
        max_tokens=body.max_tokens,
        seed=body.seed,
    )
    fields = extension_fields(body)
    constraint = format_constraint(with_structured_outputs(TEXT, fields, options, has_tools=False))
    version = ModelVersion.ChatTemplate  # what is sampled is what was asked for, whatever the model
    inference = resolve_inference(requested, options, version, _NO_THINKING, has_tools=False, constraint=constraint)
    return msgspec.structs.replace(with_extensions(inference, fields, options, version), n=number)
