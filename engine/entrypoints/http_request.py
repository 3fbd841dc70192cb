"""A request as handlers get it: aiohttp's, with what the dispatcher has found out about it."""

from __future__ import annotations

from aiohttp import web

from engine.entrypoints.auth import ApiKey


class HttpRequest(web.BaseRequest):
    """`key` is who asks, None without authentication; `extra_headers` go into the response, whatever it is."""

    ATTRS = web.BaseRequest.ATTRS | {"extra_headers", "key"}
    key: ApiKey | None = None
    extra_headers: tuple[tuple[str, str], ...] = ()

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        for name, value in self.extra_headers:
            response.headers[name] = value
