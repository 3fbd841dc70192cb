"""A request as one protocol wrote it: decoded, not yet converted. What the three protocols' request classes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, Protocol, TypeVar

from recipe.argument import text
from recipe.protocol.body import BodyDecoder, RequestBody
from recipe.request import ConversationRequest, ConversionOptions


class HasModel(Protocol):
    """Any request schema."""

    model: str


B = TypeVar("B", bound=HasModel)


class ProtocolRequest(ABC, Generic[B]):
    """A decoded request, to be converted once: conversion, even a failing one, consumes it.

    Subclasses set the decoders and implement `_convert`. Construction raises what `BodyDecoder.decode` raises. The
    fields of extensions are read if `extended`; what they do is a matter of the options of the conversion.
    """

    __slots__ = ("_body",)
    decoder: ClassVar[BodyDecoder]  # type: ignore[type-arg]
    extended_decoder: ClassVar[BodyDecoder]  # type: ignore[type-arg]

    def __init__(self, body: RequestBody, *, extended: bool = False) -> None:
        decoder = self.extended_decoder if extended else self.decoder
        self._body: B | None = decoder.decode(body)

    @property
    def model(self) -> str:
        """The requested model name; read it before `convert`."""
        return self._peek().model

    def convert(self, options: ConversionOptions) -> ConversationRequest:
        """The request as a conversation.

        Raises ConversionError for a request that breaks a rule, RuntimeError when the request has been consumed.
        """
        if not isinstance(options, ConversionOptions):
            raise TypeError(f"expected ConversionOptions, not {type(options).__name__}")
        body = self._peek()
        self._body = None
        return self._convert(body, options)

    @abstractmethod
    def _convert(self, body: B, options: ConversionOptions) -> ConversationRequest:
        """The request as a conversation; ConversionError at the first broken rule."""

    def _peek(self) -> B:
        if self._body is None:
            raise RuntimeError("protocol request has been consumed")
        return self._body


def check_generator_arguments(request: ConversationRequest, id: str, model: str) -> None:  # noqa: A002
    """TypeError unless a chunk generator can be made of these; UnicodeEncodeError for a lone surrogate."""
    if not isinstance(request, ConversationRequest):
        raise TypeError(f"expected a ConversationRequest, not {type(request).__name__}")
    text("id", id)
    text("model", model)
