"""Whether an engine's cluster is there at all. The engines' own clients try for a minute or more, and then say it
in words of their own."""

from __future__ import annotations

import re
import socket

from jobsdk.errors import ComputeError

_PATIENCE_S = 10.0  # seconds for a connection


def require(what: str, host: str, port: int) -> None:
    """Raises ComputeError at once where nobody listens there. `what` is the cluster's name in the message."""
    why = trouble(host, port)
    if why:
        raise ComputeError(f"{what} cannot be reached: {why}. Fix: start it, or correct the compute")


def trouble(host: str, port: int, patience: float = _PATIENCE_S) -> str:
    """Why nobody takes a connection there within `patience` seconds; empty where somebody does."""
    try:
        socket.create_connection((host, port), patience).close()
    except (OSError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def split(place: str, usual: int) -> tuple[str, int]:
    """Host and port of HOST, HOST:PORT or [HOST]:PORT."""
    host, _, port = place.rpartition(":") if re.search(r":\d+$", place) else (place, "", str(usual))
    return host.strip("[]"), int(port)
