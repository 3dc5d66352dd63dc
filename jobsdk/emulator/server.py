"""How requests to Azure's names are answered: the first fitting route, and errors as ARM has them."""

from __future__ import annotations

import json
import re
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from jobsdk.emulator.faults import Faults

_LOGGED = 20_000  # requests that are remembered


class Request(NamedTuple):
    """What a client sent. `parts` are what the route's pattern found."""

    method: str
    host: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    content: bytes
    parts: Mapping[str, str]

    def json(self) -> dict[str, Any]:
        """The body, which must be a JSON object. Raises Refused."""
        try:
            body = json.loads(self.content or b"{}")
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise Refused(400, "InvalidRequestContent", "The request content is not a JSON object.")
        return body


class Response(NamedTuple):
    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = {}


class Refused(Exception):
    """An answer that is an error: raised by handlers. `body` takes the place of ARM's shape."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None, body: Any = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.body = body or {"error": {"code": code, "message": message, "details": []}}


Handler = Callable[[Request], Response]


class Route(NamedTuple):
    """`pattern` is found in the whole of host and path, as in `management.azure.com/subscriptions/...`."""

    method: str
    pattern: re.Pattern[str]
    handler: Handler
    is_open: bool = False  # needs no token


class RequestLog:
    """What was asked of the emulator, in its order: dicts with method, host, path (and query), status, body."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: deque[dict[str, Any]] = deque(maxlen=_LOGGED)

    def add(self, method: str, host: str, path: str, status: int, body: Any = None) -> None:
        path = re.sub(r"(?<=[?&])sig=[^&]*", "sig=...", path)  # what a signature opens is nobody else's
        with self._lock:
            self._entries.append({"method": method, "host": host, "path": path, "status": status, "body": body})

    def all(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._entries)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()


class Application:
    """Finds who answers a request: faults first, then the token, then the route; what has none is a 501."""

    def __init__(
        self, routes: Iterable[Route], authorized: Callable[[Request], None], faults: Faults, log: RequestLog
    ) -> None:
        self._routes = list(routes)
        self._authorized = authorized
        self._faults = faults
        self._log = log

    def answer(self, method: str, host: str, target: str, headers: Mapping[str, str], content: bytes) -> Response:
        """The response to one request; never raises."""
        parsed = urlsplit(target)
        path = unquote(parsed.path)
        query = dict(parse_qsl(parsed.query, keep_blank_values=True))
        request = Request(method, host, path, query, headers, content, {})
        try:
            fault = self._faults.hit("status", method, host, target)
            if fault is not None:
                status, code, message, more = fault.answer()
                raise Refused(status, code, message, more)
            response = self._routed(request)
        except Refused as error:
            response = Response(error.body, error.status, error.headers)
        except Exception as error:  # a fault of ours: say so, and go on serving
            traceback.print_exc(file=sys.stderr)
            said = f"The emulator itself failed: {type(error).__name__}: {error}"
            response = Response({"error": {"code": "EmulatorFault", "message": said}}, 500)
        self._log.add(method, host, target, response.status, _logged(content))
        return response

    def _routed(self, request: Request) -> Response:
        where = request.host + request.path.replace("//", "/")
        found = [(route, match) for route in self._routes if (match := route.pattern.fullmatch(where))]
        chosen = next(((route, match) for route, match in found if route.method == request.method), None)
        if chosen is None or not chosen[0].is_open:
            self._authorized(request)
        if chosen is None:
            what = f"{request.method} https://{request.host}{request.path}"
            raise Refused(
                501,
                "NotImplemented",
                f"jobsdk azure-emulator does not cover {what}: it has what command jobs need. Fix: test this against "
                "a workspace of Azure ML, or see docs/azure-emulator.md for what there is",
            )
        route, match = chosen
        parts = {name: value for name, value in match.groupdict().items() if value is not None}
        return route.handler(request._replace(parts=parts))


def _logged(content: bytes) -> Any:
    """A request's body for the log, without what signs in."""
    if not content:
        return None
    try:
        return json.loads(content)
    except ValueError:
        fields = dict(parse_qsl(content.decode(errors="replace")))
        return {name: "..." if "secret" in name or "assertion" in name else value for name, value in fields.items()}
