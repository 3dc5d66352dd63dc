"""Objects that are kept up to date by a watch, and answers that go on, over one asynchronous connection."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from jobsdk.compute.kubernetes.api import Api, Gone, Object, Refused
from jobsdk.errors import ComputeError

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

_WATCH_S = 300  # seconds after which the server ends a watch, and another one begins
_POLL_S = 5.0  # seconds between two lists where the Role has no `watch`
_SHORTEST_S, _LONGEST_S = 1.0, 30.0  # seconds until another attempt
#: A connection whose other end is gone is closed after a minute.
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Connection:
    """Answers that go on. `connect` gives the connection with the present credentials, `api` is the first one."""

    def __init__(self, connect: Callable[[], Api], api: Api) -> None:
        self._connect = connect
        self.api = api
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Connection:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def _begin(self) -> None:
        clients = [await self._open.enter_async_context(client) for client in self.api.asynchronous()]
        self._clients: Iterator[httpx2.AsyncClient] = itertools.cycle(clients)

    async def lines(self, path: str, parameters: Mapping[str, str]) -> AsyncIterator[list[bytes]]:
        """The lines of an answer as they come, without their ends; none at first, when the answer begins.

        Raises ComputeError; `Refused` is one.
        """
        api, rest = self.api, b""
        try:
            async with next(self._clients).stream("GET", path, params=parameters) as answer:
                if answer.status_code >= 400:
                    api.judge(answer.status_code, await answer.aread(), f"GET {path}", answer.headers)
                _keep_alive(answer)
                yield []
                async for data in answer.aiter_bytes():
                    *lines, rest = (rest + data).split(b"\n")
                    if lines:
                        yield lines
        except api.errors as error:
            raise api.unreachable(error) from None

    async def recover(self, error: ComputeError, pause: float) -> float:
        """Wait before another attempt, with new credentials where the present ones have expired; the next pause."""
        await asyncio.sleep(max(pause, error.retry_after if isinstance(error, Refused) else 0.0))
        if isinstance(error, Refused) and error.code == 401:
            api = await asyncio.to_thread(self._connect)
            if api is not self.api:
                self.api = api
                await self._begin()
        return min(_LONGEST_S, pause * 2)


def _keep_alive(answer: httpx2.Response) -> None:
    """Notice a server that is gone without a word: ranks may be silent for hours."""
    connection = answer.extensions["network_stream"].get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):  # macOS lacks the first
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Watch(Generic[T]):
    """The objects of a kind, by name, each as `form` makes it of the JSON.

    Where the Role has no `watch` they are listed again and again. `changed` is called in the event loop.
    """

    def __init__(
        self, connection: Connection, kind: str, form: Callable[[Object], T], selector: Mapping[str, str],
        name: str | None, changed: Callable[[], None],
    ) -> None:  # fmt: skip
        self.kind = kind
        self.objects: dict[str, T] = {}
        self.gone: dict[str, T] = {}  # as they were when they were deleted
        self.is_known = False  # whether the objects have been asked for successfully
        self.trouble = ""  # why there is no news
        self._connection = connection
        self._form = form
        self._selector = selector
        self._name = name  # of the only object
        self._changed = changed
        self._version: str | None = None
        self._may_watch = True

    async def run(self) -> None:
        """Keep the objects up to date until this is canceled."""
        pause = _SHORTEST_S
        while True:
            began = time.monotonic()
            try:
                if self._version is None:
                    self._version = await asyncio.to_thread(self._ask)
                    self.is_known, self.trouble = True, ""
                    self._changed()
                if self._may_watch and self._version is not None:
                    await self._follow(self._version)
                else:
                    self._version = None
                    await asyncio.sleep(_POLL_S)
            except Refused as error:
                if error.code == 410:  # the server no longer knows what has changed since
                    self._version = None
                elif error.code == 403 and self._version is not None:
                    self._may_watch = False
                else:
                    pause = await self._fail(error, pause)
                    continue
            except ComputeError as error:
                pause = await self._fail(error, pause)
                continue
            pause = _SHORTEST_S
            await asyncio.sleep(max(0.0, _SHORTEST_S - (time.monotonic() - began)))  # a server may end all at once

    async def _fail(self, error: ComputeError, pause: float) -> float:
        self.trouble = str(error)
        return await self._connection.recover(error, pause)

    def _ask(self) -> str | None:
        """Ask for all objects again; the version from which a watch goes on, None where the only object is gone."""
        api = self._connection.api
        if self._name is None:
            found, version = api.listed(self.kind, **self._selector)
        else:  # the right to list them is not needed
            try:
                found = [api.get(self.kind, self._name)]
                version = found[0]["metadata"]["resourceVersion"]
            except Gone:
                found, version = [], None
        self.objects = {one["metadata"]["name"]: self._form(one) for one in found}
        return version

    async def _follow(self, version: str) -> None:
        """One watch, until the server ends it."""
        parameters = {
            **self._selector, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        }  # fmt: skip
        async for lines in self._connection.lines(self._connection.api.path(self.kind), parameters):
            self.trouble = ""
            for line in lines:
                event = json.loads(line)
                what, one = event["type"], event["object"]
                if what == "ERROR":
                    self._connection.api.judge(
                        int(one.get("code", 500)), json.dumps(one).encode(), f"watching {self.kind}"
                    )
                name, self._version = one["metadata"].get("name"), one["metadata"]["resourceVersion"]
                if what == "DELETED":
                    self.objects.pop(name, None)
                    self.gone[name] = self._form(one)
                elif what != "BOOKMARK":
                    self.objects[name] = self._form(one)
            if lines:
                self._changed()
