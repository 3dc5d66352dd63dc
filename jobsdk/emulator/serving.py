"""What the emulator serves over HTTP, by starlette and uvicorn: Azure's names over TLS, and questions to itself."""

from __future__ import annotations

import json
import logging
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response as HTTPResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from jobsdk.emulator.server import Response

_BODY = 64 << 20  # bytes; no request of a command job is larger
_KEEP_ALIVE_S = 600  # clients keep their connections, and some do not expect that one ends

#: Answers a request: (method, host, path and query, headers, body) -> response. Runs in a thread; never raises.
Answer = Callable[[str, str, str, Mapping[str, str], bytes], Response]


class Server:
    """Serves answers on a free port of 127.0.0.1, in a thread of its own; over TLS with a `chain` and its `key`."""

    def __init__(self, answer: Answer, chain: Path | None = None, key: Path | None = None) -> None:
        config = uvicorn.Config(
            _application(answer), loop="asyncio", http="h11", ws="none", lifespan="off",
            ssl_certfile=chain, ssl_keyfile=key, timeout_keep_alive=_KEEP_ALIVE_S, timeout_graceful_shutdown=5,
            proxy_headers=False, server_header=False, access_log=False, log_config=None,
            log_level=logging.CRITICAL,  # what clients do wrong is their own business
        )  # fmt: skip
        # asyncio sets TCP_NODELAY only where the protocol is named; without it answers wait for acknowledgements.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        self.port: int = listener.getsockname()[1]
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)


def _application(answer: Answer) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        headers = dict(request.headers)
        if int(headers.get("content-length", 0)) > _BODY or "transfer-encoding" in headers:
            return await HTTPResponse(None, 413, {"Connection": "close"})(scope, receive, send)
        try:
            content = await request.body()
        except ClientDisconnect:
            return
        host = headers.get("host", "").partition(":")[0].lower()
        target = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        found = await run_in_threadpool(answer, request.method, host, target, headers, content)
        body = None if found.body is None else json.dumps(found.body)
        more = {"x-ms-request-id": str(uuid.uuid4()), **found.headers}
        await HTTPResponse(body, found.status, more, "application/json")(scope, receive, send)

    return serve
