"""Who may use the page: only who has its token, from this machine, from the page itself.

A server on loopback can be reached by every page that is open in the same browser, and by every user of the machine.
So each request needs the token (in the cookie that the first one sets, or as a bearer); the Host header must be ours,
against names that others let point to 127.0.0.1; nothing is answered that another page has asked for, also not one of
another port of this machine, to which the browser would send our cookie; and what changes something must come with a
header of our own page.
"""

from __future__ import annotations

import hmac
import html
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

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


class Tickets:
    """Tokens that let in once; `used` is called when one has."""

    def __init__(self, *tickets: str, used: Callable[[], None] = lambda: None) -> None:
        self._left = list(tickets)
        self._used = used
        self._lock = threading.Lock()

    def take(self, given: str) -> bool:
        """Whether it is one, which then is used up."""
        with self._lock:
            for ticket in self._left:
                if hmac.compare_digest(given.encode(), ticket.encode()):
                    self._left.remove(ticket)
                    self._used()
                    return True
        return False


class Guard:
    """Lets through to `app` what may pass: who has `token`, or in the address of the first request one of `tickets`."""

    def __init__(self, app: Any, *, token: str, port: int, tickets: Tickets | None = None) -> None:
        self._app = app
        self._token = token
        self._tickets = tickets or Tickets()
        self._cookie = f"jobsdk-{port}"  # cookies know no ports: several servers have several
        self._port = port
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":  # the page has none
                await send({"type": "websocket.close", "code": 1008})
                return
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
        if request.headers.getlist("host") not in [[host] for host in self._hosts]:
            text = f"this page is at 127.0.0.1:{self._port} only: forward that very port to see it from elsewhere"
            return PlainTextResponse(text, 421)
        origin = request.headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in self._hosts}:
            return PlainTextResponse("this page takes nothing from others", 403)
        if request.method not in ("GET", "HEAD") and request.headers.get(OWN) != "1":
            return PlainTextResponse("this is for the page itself", 403)
        if self._enters(request):
            return None  # from wherever its address was clicked
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("this page takes nothing from others; type its address in", 403)
        if not any(map(self._is_token, self._given(request))):
            return PlainTextResponse("open the address that `jobsdk ui` has printed: it holds the token", 401)
        return None

    def _given(self, request: Request) -> list[str]:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        # All of that name: a page of another port can set one as well, which must not hide ours.
        cookies = (one.strip().partition("=") for line in request.headers.getlist("cookie") for one in line.split(";"))
        values = [value for name, _, value in cookies if name == self._cookie]
        return [*values, bearer if scheme.lower() == "bearer" else ""]

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _enters(self, request: Request) -> bool:
        """Whether somebody opens the page with a token in its address."""
        given = request.query_params.get("token")
        mode = request.headers.get("sec-fetch-mode", "navigate")
        if given is None or request.method != "GET" or mode != "navigate":
            return False
        scope = request.scope
        scope["jobsdk.entered"] = self._is_token(given) or self._tickets.take(given)
        return bool(scope["jobsdk.entered"])

    def _entered(self, request: Request) -> Response | None:
        """Who comes with the token in the address has it in a cookie from then on, and no more in the address.

        The page goes on by itself: a redirection would be one of the page that held the link, and without the cookie.
        """
        if not request.scope.get("jobsdk.entered"):
            return None
        to = html.escape("/" + request.url.path.lstrip("/"))
        head = f'<meta http-equiv="refresh" content="0;url={to}"><link rel="icon" href="/static/icon.svg">'
        answer = HTMLResponse(f"<!doctype html><title>jobsdk</title>{head}")
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return answer
