"""CORS: which web pages of other origins may read answers. None, unless the server is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_PREFLIGHT_SECONDS = 600
_EXPOSED = "x-request-id, request-id, retry-after, server-timing"


class Cors:
    """Makes the headers for the origins it was told; `*` stands for every origin."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origin.rstrip("/") for origin in origins)

    def headers_for(self, request_headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """What to add to the answer of a request; nothing for a foreign origin."""
        if not self._origins:
            return ()
        origin = request_headers.get("Origin", "")
        if "*" in self._origins:
            return (("Access-Control-Allow-Origin", "*"), ("Access-Control-Expose-Headers", _EXPOSED))
        if origin not in self._origins:
            return (("Vary", "Origin"),)
        return (
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Expose-Headers", _EXPOSED),
            ("Vary", "Origin"),
        )

    @staticmethod
    def preflight_headers(request_headers: Mapping[str, str], methods: str) -> dict[str, str]:
        """What a preflight is told besides: methods, the headers that it asked for, and for how long."""
        return {
            "Access-Control-Allow-Methods": methods,
            "Access-Control-Allow-Headers": request_headers.get("Access-Control-Request-Headers", "*")[:1000],
            "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
        }
