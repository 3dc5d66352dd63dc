"""A run that somebody looks at: its objects come by watch, its logs as streams, to its folder here.

Nothing is asked while nothing happens. What comes is written to the folder at once, where the reader of the logs and
whoever waits for the end find it.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jobsdk.compute.kubernetes import logs
from jobsdk.compute.kubernetes.api import Api, Gone, Object
from jobsdk.compute.kubernetes.logs import Log, split
from jobsdk.compute.kubernetes.objects import CONTAINER, LABEL
from jobsdk.compute.kubernetes.pods import Pod
from jobsdk.compute.kubernetes.run import Look
from jobsdk.compute.kubernetes.watches import Connection, Watch
from jobsdk.errors import ComputeError
from jobsdk.home import locked
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.refresh import Pace

_SOON_S, _BUSY_S = 0.02, 0.2  # seconds in which lines are gathered: first ones, and while they keep coming
_TURN_S = 30.0  # seconds between two looks at a log for which no file descriptor is left
_AGAIN_S = 1.0  # seconds until a log that broke off is asked for again
_LATE_S = 0.2  # seconds between two looks at a log whose last lines are late
_SETTLED_S = 60.0  # seconds: an answer that has not begun by then is one of a rank that writes nothing
_APART_S = 0.001  # seconds between two logs that begin to be followed
_ENOUGH = 32 << 20  # bytes that wait to be written down
_FILES = 256  # descriptors that this process needs besides the logs that it follows
_STOP_S = 20.0  # seconds
_LEASE_S = 120.0  # seconds after which nobody is there who looks any longer


def most_streams() -> int:
    """How many logs this process can follow at the same time."""
    return max(8, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _FILES)


class Followed(NamedTuple):
    """What is followed: `connect` gives the connection with the present credentials, `nodes` is as in `Look`."""

    connect: Callable[[], Api]
    run: RunFolder
    where: Mapping[str, Any]
    nodes: Collection[int] | None
    pace: Pace


class Following:
    """`with Following(followed) as following`: a thread keeps the run's folder up to date."""

    def __init__(self, followed: Followed) -> None:
        self._followed = followed
        self._stop = threading.Event()
        self._crash: BaseException | None = None

    def __enter__(self) -> Following:
        self._start()
        return self

    def _start(self) -> None:
        self._work = _Work(self._followed)
        self._loop: asyncio.AbstractEventLoop | None = None
        name = f"jobsdk-{self._followed.run.name}"
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._loop is not None:
            self._work.is_over = True  # before Python 3.12, asyncio.wait_for may lose a cancellation
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(_STOP_S)

    def check(self) -> None:
        """Say that somebody is still there. Raises ComputeError if something cannot be seen now."""
        if self._crash is not None:
            raise self._crash
        if not self._thread.is_alive() and not self._work.is_over:
            self._start()
        self._work.asked = time.monotonic()
        for trouble in self._work.troubles():
            raise ComputeError(trouble)

    def _live(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._crash = error

    async def _main(self) -> None:
        self._task = asyncio.ensure_future(self._work.run())
        self._loop = asyncio.get_running_loop()
        if self._stop.is_set():
            self._task.cancel()
        await self._task


class _Work:
    """What the thread does, in its event loop. Files are written, and single requests made, in other threads."""

    def __init__(self, followed: Followed) -> None:
        self._connect, self._run, self._where, self._nodes, self._pace = followed
        self._trouble: dict[str, str] = {}
        self._lost: list[Pod] = []  # whose logs are gone before their end
        self._new: list[tuple[str, Log]] = []
        self._size = 0  # of the lines in it, in bytes
        self._is_changed = False
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._watches: list[Watch[Pod] | Watch[Object]] = []
        self.asked = time.monotonic()
        self.is_over = False

    def troubles(self) -> list[str]:
        """What cannot be seen now, and why."""
        return [*self._trouble.values(), *(one.trouble for one in self._watches if one.trouble)]

    async def run(self) -> None:
        """Until the run's end is written down, or nobody looks any longer."""
        self._wake = asyncio.Event()
        name, pause = self._where["name"], self._pace.shortest
        async with contextlib.AsyncExitStack() as stack:
            while True:
                try:
                    self._connection = Connection(self._connect, await asyncio.to_thread(self._connect))
                    break
                except ComputeError as error:
                    self._trouble["connection"] = str(error)
                    await asyncio.sleep(pause)
            self._trouble.clear()
            await stack.enter_async_context(self._connection)
            selector = {"labelSelector": f"{LABEL}={name}"}
            self._pods = Watch(self._connection, "Pod", Pod, selector, None, self._note)
            only = {"fieldSelector": f"metadata.name={name}"}
            self._jobs: Watch[Object] = Watch(self._connection, self._where["kind"], dict, only, name, self._note)
            self._watches = [self._pods, self._jobs]
            watches = [asyncio.ensure_future(one.run()) for one in self._watches]
            try:
                await self._follow(watches)
            finally:
                tasks = [*watches, *self._streams.values()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _note(self) -> None:
        self._is_changed = True
        self._wake.set()

    async def _follow(self, watches: Sequence[asyncio.Future[None]]) -> None:
        pause, looked = self._pace.shortest, 0.0
        while not self.is_over:
            new, self._new, self._size = self._new, [], 0
            is_over = bool(new) and await asyncio.to_thread(self._write_down, new)
            if self._is_changed or is_over:
                pause = self._pace.shortest
            now = time.monotonic()
            if self._pods.is_known and self._jobs.is_known and (is_over or now - looked >= pause):
                self._is_changed, looked = False, now
                wanted = await asyncio.to_thread(self._look)
                self.is_over = self.is_over or wanted is None
                if wanted is None or now - self.asked > _LEASE_S:
                    return
                self._begin(wanted)
                pause = min(self._pace.longest, pause * 1.2)
            for task in (*watches, *self._streams.values()):
                if task.done():
                    task.result()  # raises what is a mistake of our own
            await self._rest(looked + pause - time.monotonic(), _BUSY_S if new else _SOON_S)

    async def _rest(self, seconds: float, gathering: float) -> None:
        """Until something comes, or so long."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(_SOON_S, seconds))
            await asyncio.sleep(gathering)
        self._wake.clear()

    def _say(self, what: str, trouble: str) -> None:
        if trouble:
            self._trouble[what] = trouble
        else:
            self._trouble.pop(what, None)

    # -- in other threads ----------------------------------------------------------------------------------------------

    def _write_down(self, new: Sequence[tuple[str, Log]]) -> bool:
        """Take in what has come of logs; whether node 0 says that the run is over."""
        with locked(self._run.path / "refresh.lock"):
            return self._seen().take_in(new)

    def _look(self) -> dict[str, str | None] | None:
        """Take in how the objects are; the logs to follow, each from a second on. None where the run has ended."""
        job = next(iter(self._jobs.objects.values()), None)
        with locked(self._run.path / "refresh.lock"):
            if self._run.recorded_state().is_terminal:
                return None
            look = self._seen()
            try:
                if look.see(job, list(self._pods.objects.values()), ()):
                    return None
                self._trouble.pop("look", None)
                while self._lost:
                    look.tell_lost_log(job, self._lost.pop())
            except ComputeError as error:
                self._trouble["look"] = str(error)
            return look.unread(self._pods.objects.values())

    def _seen(self) -> Look:
        return Look(self._connection.api, self._run, self._where, self._nodes)

    # -- logs ----------------------------------------------------------------------------------------------------------

    def _begin(self, wanted: Mapping[str, str | None]) -> None:
        """Follow logs that are not followed yet."""
        live = sum(not task.done() for task in self._streams.values())
        for number, name in enumerate(wanted.keys() - self._streams.keys()):
            reading = self._read(name, wanted[name], number * _APART_S, live + number < most_streams())
            self._streams[name] = asyncio.ensure_future(reading)

    async def _read(self, name: str, since: str | None, delay: float, is_live: bool) -> None:
        """Take a log in until its end: as it comes, or every now and then."""
        path = self._connection.api.path("Pod", name) + "/log"
        pause, has_end = _AGAIN_S, False
        over: float | None = None  # when its container was first seen to be over
        await asyncio.sleep(delay)
        while True:
            pod = self._pods.objects.get(name) or self._pods.gone.get(name)
            if over is None and pod is not None and pod.is_over:
                over = time.time()
            is_last = pod is not None and over is not None and pod.is_settled(over)
            parameters = {"container": CONTAINER, "timestamps": "true", **({"sinceTime": since} if since else {})}
            if is_live and over is None:
                parameters["follow"] = "true"
            settled = asyncio.get_running_loop().call_later(_SETTLED_S, self._say, name, "")
            try:
                async for lines in self._connection.lines(path, parameters):
                    pause = _AGAIN_S
                    self._say(name, "")
                    since = await self._take(name, lines) or since
                    has_end = has_end or any(logs.is_end(split(line)[1]) for line in lines[-1:])
                is_last = is_last or (has_end and over is not None)
            except Gone:
                if pod is not None and over is None:
                    self._lost.append(pod)
                is_last = True
            except ComputeError as error:
                who = f"node {pod.node} (pod {name})" if pod else f"the pod {name}"
                self._say(name, f"the output of {who} cannot be read now: {error}")
                pause = await self._connection.recover(error, pause)
                continue
            finally:
                settled.cancel()
            if is_last:
                self._say(name, "")
                self._new.append((name, Log([], None, True)))
                return
            await asyncio.sleep(_LATE_S if over is not None else _AGAIN_S if is_live else _TURN_S)

    async def _take(self, name: str, lines: Sequence[bytes]) -> str | None:
        """Hand lines over; the second of the last one."""
        if not lines:
            return None
        split_lines = [split(line) for line in lines]
        until = next((moment for moment, _ in reversed(split_lines) if moment), None)
        self._new.append((name, Log([text for _, text in split_lines], until, False)))
        self._size += sum(map(len, lines))
        self._wake.set()
        while self._size > _ENOUGH:
            await asyncio.sleep(_BUSY_S)
        return until
