"""The proxy that clients are pointed at: connections to Azure's names end here, others go on to where they lead."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import math
import re
from collections.abc import Coroutine
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from jobsdk.emulator.faults import Faults
from jobsdk.emulator.server import RequestLog

#: Names that are Azure's, beside the storage account's: whatever is asked of them is answered here.
AZURE = ("azure.com", "azureml.ms", "microsoftonline.com", "windows.net", "login.microsoft.com")
#: Except storage: accounts that are not the emulator's are real ones, with public data.
_STORAGE = "core.windows.net"
_CHUNK = 65536
_HEAD = 65536  # bytes that a request's head may have
_CONNECT_S = 30.0


class Ends(NamedTuple):
    """The ports on 127.0.0.1 where Azure's names, the account's blobs and questions to the emulator are served."""

    service: int
    blobs: int
    blob_host: str
    control: int


def names(blob_host: str) -> list[str]:
    """The names that a certificate must hold."""
    wild = (f"*.{name}" for name in AZURE)
    return ["management.azure.com", *AZURE, *wild, "*.api.azureml.ms", "*.core.windows.net", blob_host]


class Proxy:
    """`latency` is the time, in seconds, that each round trip to one of Azure's names takes longer."""

    def __init__(self, ends: Ends, faults: Faults, log: RequestLog, latency: float = 0.0) -> None:
        self._ends = ends
        self._faults = faults
        self._log = log
        self.latency = latency
        self._clients: set[asyncio.Task[None]] = set()  # the loop alone would not keep them alive

    async def start(self, port: int) -> asyncio.Server:
        """Listen on a port of 127.0.0.1; 0 takes a free one."""
        return await asyncio.start_server(self._accept, "127.0.0.1", port, limit=_HEAD)

    async def close(self) -> None:
        """Leave all clients."""
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _CONNECT_S)
            method, target, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            if method == "CONNECT":
                host, _, port = target.rpartition(":")
                await self._connect(host.strip("[]").lower(), int(port), reader, writer)
            else:  # asked of the emulator itself
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._ends.control)
                far_writer.write(head)
                await _carry(reader, writer, far_reader, far_writer)
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            pass  # a client that goes away, or is none
        finally:
            writer.close()

    # -- connections ---------------------------------------------------------------------------------------------

    async def _connect(self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here = self._here(host)
        limit = math.inf
        if here is not None:
            fault = self._faults.hit("drop_after", "CONNECT", host, "")
            limit = fault.drop_after if fault and fault.drop_after is not None else math.inf
            self._log.add("CONNECT", host, "", 200)
            await asyncio.sleep(self.latency)  # the handshake of TCP
        try:
            there = asyncio.open_connection("127.0.0.1", here) if here is not None else _beyond(host, port)
            far_reader, far_writer = await asyncio.wait_for(there, _CONNECT_S)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, ValueError):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        delay = self.latency / 2 if here is not None else 0.0
        await _carry(reader, writer, far_reader, far_writer, delay, limit)

    def _here(self, host: str) -> int | None:
        """The port that serves a name; None for names that are not ours to answer for."""
        if host == self._ends.blob_host:
            return self._ends.blobs
        if host.endswith("." + _STORAGE):
            return None
        return self._ends.service if any(host == name or host.endswith("." + name) for name in AZURE) else None


async def _beyond(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a real host, through the proxy that this environment has for that, if any."""
    outer = _outer_proxy(host)
    if outer is None:
        return await asyncio.open_connection(host, port)
    proxy = urlsplit(outer if "://" in outer else f"http://{outer}")
    reader, writer = await asyncio.open_connection(proxy.hostname or "", proxy.port or 80)
    asks = f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n"
    if proxy.username:
        given = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        asks += f"Proxy-Authorization: Basic {base64.b64encode(given.encode()).decode()}\r\n"
    writer.write(asks.encode() + b"\r\n")
    answer = await reader.readuntil(b"\r\n\r\n")
    if not re.match(rb"HTTP/1\.[01] 2", answer):
        writer.close()
        raise ValueError(f"{proxy.hostname} refuses to connect to {host}")
    return reader, writer


def _outer_proxy(host: str) -> str | None:
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    return None if proxy_bypass_environment(host) else getproxies_environment().get("https")


async def _carry(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
    delay: float = 0.0,
    limit: float = math.inf,
) -> None:
    """Carry bytes both ways until both have ended, or one has failed; up, those after the first `limit` fail."""
    ways = (*_pump(reader, far_writer, delay, limit), *_pump(far_reader, writer, delay))
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        far_writer.close()


def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float, limit: float = math.inf
) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
    """The two ends of one way: what the first reads, the second writes `delay` seconds later."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)

    async def take() -> None:
        data = b"..."
        while data:
            data = await reader.read(_CHUNK)
            await queue.put((loop.time() + delay, data))

    async def give() -> None:
        carried = 0
        while True:
            due, data = await queue.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            carried += len(data)
            if carried > limit:
                raise ConnectionAbortedError("the fault is due")
            if not data:
                break
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()

    return take(), give()
