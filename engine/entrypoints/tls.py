"""HTTPS: the server's certificate."""

from __future__ import annotations

import ssl

from engine.entrypoints.options import OptionError, ServerOptions


def server_context(options: ServerOptions) -> ssl.SSLContext | None:
    """The TLS context of `--tls-cert` and `--tls-key`, None without; raises `OptionError`."""
    if options.tls_cert is None:
        if options.tls_key is not None:
            raise OptionError("--tls-key needs --tls-cert")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"--tls-cert {options.tls_cert}: {error}") from None
    return context
