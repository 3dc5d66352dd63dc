"""Serving the page on loopback."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from jobsdk.errors import JobsdkError
from jobsdk.ui.entrance import entrance
from jobsdk.ui.guard import Tickets
from jobsdk.ui.server import application


def serve(port: int, ready: Callable[[str], None], open_browser: Callable[[str], None] | None = None) -> None:
    """Serve on 127.0.0.1 until SIGINT, SIGTERM or SIGHUP.

    Once the page can be opened, `ready` gets its address, with the token, and `open_browser` the `file://` address of
    another page, which leads there with a token that lets in once. That page is deleted when the token is used, or
    when the server ends.

    Raises JobsdkError if the port (0: a free one) is not available.
    """
    # asyncio sets TCP_NODELAY only where the protocol is named; without it answers wait for acknowledgements.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise JobsdkError(f"port {port} on 127.0.0.1 is not available: {error.strerror}. Fix: --port 0") from None
    listener.listen(128)
    token, port = secrets.token_urlsafe(24), listener.getsockname()[1]
    address, once = f"http://127.0.0.1:{port}/?token=", secrets.token_urlsafe(24)
    for signum in (signal.SIGTERM, signal.SIGHUP):  # uvicorn raises SIGTERM again when it has ended
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, _exit)
    with entrance(address + once) if open_browser else contextlib.nullcontext() as page:
        tickets = Tickets(once, used=lambda: page.unlink(missing_ok=True)) if page else Tickets()
        app = application(token, port, tickets, lambda: server.should_exit)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        ready(address + token)
        if open_browser and page:
            open_browser(page.as_uri())
        server.run(sockets=[listener])


def _exit(signum: int, _: FrameType | None) -> None:
    raise SystemExit(128 + signum)
