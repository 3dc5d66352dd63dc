"""Serving the page on loopback."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

import uvicorn

from jobsdk.errors import JobsdkError
from jobsdk.ui.server import application


def serve(port: int, ready: Callable[[str], None]) -> None:
    """Serve on 127.0.0.1 until SIGINT or SIGTERM. `ready` is told the address, with its token, once it can be opened.

    Raises JobsdkError where the port (0: a free one) cannot be had.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise JobsdkError(f"port {port} on 127.0.0.1 cannot be had: {error.strerror}. Fix: --port 0") from None
    listener.listen(128)
    token, port = secrets.token_urlsafe(24), listener.getsockname()[1]
    config = uvicorn.Config(
        application(token, port), log_level="warning", access_log=False, lifespan="off", server_header=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    ready(f"http://127.0.0.1:{port}/?token={token}")
    uvicorn.Server(config).run(sockets=[listener])
