"""Who may use the page: only who has its token, from this machine, from the page itself.

A server on loopback can be reached by every page that is open in the same browser, and by every user of the machine.
So each request needs the token (in the cookie that the first one sets, or as a bearer); the Host header must be ours,
against names that others let point to 127.0.0.1; and what changes something must come from our own page.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: A header that only scripts of the page can set without the browser asking us first.
OWN = "x-jobsdk"
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """Lets through to `app` what may pass."""

    def __init__(self, app: Any, *, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._cookie = f"jobsdk-{port}"  # cookies know no ports: several servers have several
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        answer = self._refused(request) or self._entered(request)

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((key.encode(), value.encode()) for key, value in _HEADERS.items() if key.encode() not in names),
                ]
            await send(message)

        await (answer or self._app)(scope, receive, guarded)

    def _refused(self, request: Request) -> Response | None:
        if request.headers.get("host", "") not in self._hosts:
            return PlainTextResponse("this page is at 127.0.0.1 only", 421)
        origin = request.headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in self._hosts}:
            return PlainTextResponse("this page takes nothing from others", 403)
        if request.method not in ("GET", "HEAD") and request.headers.get(OWN) != "1":
            return PlainTextResponse("this is for the page itself", 403)
        if not any(map(self._is_token, self._given(request))):
            return PlainTextResponse("open the address that `jobsdk ui` has printed: it holds the token", 401)
        return None

    def _given(self, request: Request) -> list[str]:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        return [
            request.cookies.get(self._cookie, ""),
            bearer if scheme.lower() == "bearer" else "",
            request.query_params.get("token", "") if request.method == "GET" else "",
        ]

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _entered(self, request: Request) -> Response | None:
        """Who comes with the token in the address has it in a cookie from then on, and no more in the address."""
        if "token" not in request.query_params:
            return None
        answer = RedirectResponse(request.url.remove_query_params("token").path, 303)
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return answer
