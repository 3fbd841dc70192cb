"""The decoder of Responses bodies: the shared one with the hook that reads the unions of the schema."""

from __future__ import annotations

from typing import Any

import msgspec

from recipe.protocol.body import BodyDecoder
from recipe.protocol.responses.schema import ResponsesBody, decode_union


class ResponsesDecoder(BodyDecoder[ResponsesBody]):
    """See `BodyDecoder`."""

    __slots__ = ()

    def __init__(self) -> None:
        self._schema = ResponsesBody
        self._decode = msgspec.json.Decoder(ResponsesBody, dec_hook=decode_union).decode

    def _from_value(self, value: Any) -> ResponsesBody:
        try:
            return msgspec.convert(value, ResponsesBody, dec_hook=decode_union)
        except msgspec.ValidationError as error:
            raise ValueError(f"invalid request body: {error}") from None
