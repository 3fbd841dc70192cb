"""Looking at prompts: what a request becomes before a model sees it, token by token, and tokens back to text.

A body is a text (`prompt`) or a request of one of the three protocols. Which one is told by `protocol`, else by what it
holds: `input` is Responses, `messages` Chat Completions. How many tokens its images are is not known here: whoever asks
counts them, and asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from recipe.conversation import ImageSource
from recipe.errors import ConversionError
from recipe.prepare import Preparer, RejectedRequest, worker_preparer
from recipe.prepare_completion import plain_prompt, text_of
from recipe.prompt import Prompt
from recipe.protocol.body import strict_json

PROTOCOLS = ("chat_completions", "responses", "messages")
MAX_TOKEN_ID = 2**32 - 1


class Piece(msgspec.Struct):
    """One token of a prompt. A special one is a token of the added vocabulary, which no text becomes."""

    id: int
    text: str
    special: bool


class InspectedPrompt(msgspec.Struct):
    """A prompt with its tokens, of which one stands for each image; `count` has images at their real size.

    `special_ranges` are half-open ranges of code points in `prompt`.
    """

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None
    prompt: str
    special_ranges: list[tuple[int, int]]
    pieces: list[Piece]


@dataclass(slots=True)
class UncountedImages:
    """The images of a prompt, to be counted before it can be shown."""

    image_sources: Sequence[ImageSource]


class DetokenizedText(msgspec.Struct):
    """The text of tokens, whole and token by token."""

    prompt: str
    pieces: list[Piece]


def tokenize(
    body: bytes, protocol: str | None, model: str, image_tokens: int | None = None
) -> bytes | UncountedImages | RejectedRequest:
    """`inspect_prompt` as JSON, which is written here and not by whoever waits for it."""
    inspected = inspect_prompt(body, protocol, model, image_tokens)
    return inspected if isinstance(inspected, UncountedImages) else _as_json(inspected)


def detokenize(body: bytes) -> bytes | RejectedRequest:
    """`text_of_tokens` as JSON."""
    return _as_json(text_of_tokens(body))


def inspect_prompt(
    body: bytes, protocol: str | None, model: str, image_tokens: int | None = None
) -> InspectedPrompt | UncountedImages | RejectedRequest:
    """What `body` becomes. `protocol` and `model` hold where the body does not say.

    `image_tokens` is what its images come to beyond one token for each; None is not known yet.
    """
    preparer = worker_preparer()
    try:
        fields = _fields(body)
        prompt, image_sources = _prompt(preparer, fields, protocol, model)
        if image_sources and image_tokens is None:
            return UncountedImages(image_sources)
        token_ids = preparer.tokenizer.prompt_tokenizer.encode(prompt)
    except ConversionError as error:
        return RejectedRequest(error.status_code, str(error))
    except ValueError as error:
        return RejectedRequest(400, str(error))
    pieces = _pieces(preparer, token_ids)
    return InspectedPrompt(
        count=len(token_ids) + (image_tokens or 0),
        max_model_len=preparer.config.context_limit,
        tokens=token_ids,
        token_strs=[piece.text for piece in pieces] if fields.get("return_token_strs") is True else None,
        prompt=prompt.text,
        special_ranges=prompt.special_ranges,
        pieces=pieces,
    )


def text_of_tokens(body: bytes) -> DetokenizedText | RejectedRequest:
    """The text of the token IDs in `tokens`."""
    preparer = worker_preparer()
    try:
        token_ids = _fields(body).get("tokens")
    except ValueError as error:
        return RejectedRequest(400, str(error))
    size = preparer.tokenizer.inner.get_vocab_size(with_added_tokens=True)
    if not isinstance(token_ids, list) or not all(type(token) is int and 0 <= token < size for token in token_ids):
        return RejectedRequest(400, f"tokens must be a list of token IDs in [0, {size})")
    return DetokenizedText(text_of(preparer, token_ids), _pieces(preparer, token_ids))


def _as_json(answer: msgspec.Struct | RejectedRequest) -> bytes | RejectedRequest:
    return answer if isinstance(answer, RejectedRequest) else msgspec.json.encode(answer)


def _fields(body: bytes) -> dict[str, Any]:
    fields = strict_json(body)
    if not isinstance(fields, dict):
        raise ValueError("invalid request body: expected an object")
    return fields


def _prompt(
    preparer: Preparer, fields: dict[str, Any], protocol: str | None, model: str
) -> tuple[Prompt, list[ImageSource]]:
    text = fields.get("prompt")
    if isinstance(text, str):
        return plain_prompt(preparer, text, adds_bos=fields.get("add_special_tokens") is not False), []
    named = fields.pop("protocol", None) or protocol or ("responses" if "input" in fields else "chat_completions")
    if named not in PROTOCOLS:
        raise ConversionError(f"Invalid protocol value, it must be one of {', '.join(PROTOCOLS)}")
    if "messages" not in fields and "input" not in fields:
        raise ConversionError("the body must have a prompt (a string), messages, or an input")
    fields.setdefault("model", model)
    if named == "messages":
        fields.setdefault("max_tokens", 1)  # which it demands, and which says nothing about the prompt
    fields.pop("add_special_tokens", None)  # a conversation has those of its template
    rendered = preparer.encoding.render_conversation(preparer.conversation(named, fields))
    return rendered.parts, rendered.image_sources


def _pieces(preparer: Preparer, token_ids: list[int]) -> list[Piece]:
    added, token_bytes = preparer.tokenizer.added_spellings, preparer.tokenizer.token_bytes
    return [Piece(token, token_bytes(token).decode(errors="replace"), token in added) for token in token_ids]
