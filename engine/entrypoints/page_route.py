"""The page at `/`: one file without anything from elsewhere, to talk to the model and to look at the server."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from engine.entrypoints.http_request import HttpRequest

_PAGE = Path(__file__).with_name("page.html")
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageRoute:
    """GET /. The page holds no secrets; what it asks for needs the API key that its reader gives it."""

    def __init__(self) -> None:
        self._page = _PAGE.read_bytes()

    async def show(self, request: HttpRequest, request_id: str) -> web.StreamResponse:
        return web.Response(body=self._page, headers={**_HEADERS, "x-request-id": request_id})
