"""What a service manager is told: systemd's notification protocol, over the socket that it names.

Without such a socket nothing is said. A unit of `Type=notify` is up when the server is ready, not when it was started.
"""

from __future__ import annotations

import logging
import os
import socket

logger = logging.getLogger("server")


def notify(*assignments: str) -> None:
    """Send `assignments` (`READY=1`, `STATUS=...`); a failure is logged and changes nothing else."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto("\n".join(assignments).encode(), address)
    except OSError as error:
        logger.warning("systemd could not be notified: %s", error)
