"""The error of a request that does not convert: always the client's to fix, told in the protocols' one envelope."""

from __future__ import annotations

import msgspec


class ConversionError(Exception):
    """A protocol request that is invalid or cannot be converted. `str(error)` is the message.

    `status_code` is the HTTP status; `body` is the error envelope, the same for every protocol.
    """

    def __init__(self, message: str, status_code: int = 400) -> None:
        super().__init__(message)
        self.status_code = status_code

    @property
    def body(self) -> str:
        """The error envelope as compact JSON."""
        kind = "invalid_request_error"
        error = {"message": str(self), "type": kind, "param": None, "code": kind}
        return msgspec.json.encode({"error": error}).decode()
