"""The socket on which HTTP listens: the launcher's, so that it outlives any child."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ..errors import LaunchError

_BACKLOG = 2048


def listen_tcp(host: str, port: int) -> socket.socket:
    """Raises `LaunchError`, naming host and port, if that is not possible."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server((str(address[0]), port), family=family, backlog=_BACKLOG)
    except (OSError, ValueError) as error:  # the latter for names that can't be one
        number = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(number) if number and number > 0 else str(error)
        raise LaunchError(f"cannot listen on {host} port {port}: {reason}") from error


def listen_unix(path: Path) -> socket.socket:
    """A socket in the file system, in a private directory."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(_BACKLOG)
    return listener


def url_of(listener: socket.socket) -> str:
    """What clients on this machine call it."""
    if listener.family == socket.AF_UNIX:
        return "http://localhost"
    name, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, str(name))
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
