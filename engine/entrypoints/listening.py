"""Where the server listens: a TCP address or a Unix socket, tried before anything slow is started."""

from __future__ import annotations

import socket
import ssl

from aiohttp import web

from engine.entrypoints.options import OptionError, ServerOptions


class ListenError(OptionError):
    """The server cannot listen where it was told to."""


def check_address(options: ServerOptions) -> None:
    """Raise `ListenError` when the address is taken or is none of ours, before a model is loaded for nothing."""
    if options.uds is not None or not options.port:
        return
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host or None, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        raise _refusal(options, error) from None


async def listen(runner: web.ServerRunner, options: ServerOptions, context: ssl.SSLContext | None) -> str:
    """Accept connections; returns the address as it is shown. Raises `ListenError`."""
    try:
        if options.uds is not None:
            await web.UnixSite(runner, options.uds, ssl_context=context).start()
            return f"unix:{options.uds}"
        await web.TCPSite(runner, options.host, options.port, ssl_context=context).start()
    except OSError as error:
        raise _refusal(options, error) from None
    host, port = runner.addresses[0][:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'http' if context is None else 'https'}://{shown}:{port}"


async def stop_listening(runner: web.ServerRunner) -> None:
    """Accept no more connections; those that are open stay."""
    for site in list(runner.sites):
        await site.stop()


def _refusal(options: ServerOptions, error: OSError) -> ListenError:
    reason = error.strerror or str(error)
    if options.uds is not None:
        return ListenError(f"cannot listen on {options.uds}: {reason}; give another --uds")
    return ListenError(f"cannot listen on {options.host}:{options.port}: {reason}; give another --port or --host")
