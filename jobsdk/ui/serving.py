"""Serving the page on loopback."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

import uvicorn

from jobsdk.errors import JobsdkError
from jobsdk.ui.guard import Tickets
from jobsdk.ui.server import application


def serve(port: int, ready: Callable[[str, str], None]) -> None:
    """Serve on 127.0.0.1 until SIGINT or SIGTERM. `ready` is told the address, with its token, once it can be opened,
    and the same with a token that lets in once.

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
    once = secrets.token_urlsafe(24)
    app = application(token, port, Tickets(once), lambda: server.should_exit)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    address = f"http://127.0.0.1:{port}/?token="
    ready(address + token, address + once)
    server.run(sockets=[listener])
