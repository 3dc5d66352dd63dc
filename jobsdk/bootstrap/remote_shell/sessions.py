"""The remote shell's end on a node: commands that others of the job have started here, as children of the bootstrap.

Every message has `session`, and `what` it is about: "open" (a `command`), "data", "eof", "taken", "signal", "gone" (who
asked has ended) come; "opened", "refused", "data", "taken" and "ended" go. Data is base64, 48 KiB at a time.
"""

from __future__ import annotations

import base64
import os
import signal
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional

from ..control.loop import Loop
from ..system import processes
from .stream_copy import Sink, Source

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..spec.messages import SendShell, Shell, ShellFacts

_PIECE = 1 << 16  # bytes of one write to a pipe of ours, which does not block


class Sessions:
    """All of one start of the job. `send` answers who asked.

    `environment` is what a command finds. `address` is how the other nodes reach this one: the answer to `hostname
    -I`, by which launchers ask for it; the machine's own may begin with an address of some bridge.
    """

    def __init__(
        self, loop: Loop, environment: Mapping[str, str], address: str, grace: float, send: Callable[[Shell], None]
    ) -> None:
        self._loop = loop
        self._environment = environment
        self._address = address
        self._grace = grace
        self._send = send
        self._sessions: Dict[str, _Session] = {}

    def living(self) -> List[int]:
        """The processes that were started and have not ended."""
        return [session.pid for session in self._sessions.values() if session.status is None]

    def heard(self, message: Shell) -> None:
        name = message["session"]
        if message["what"] == "open":
            self._open(name, message["command"])
        elif name in self._sessions:
            self._sessions[name].heard(message)

    def ended(self, pid: int, status: int) -> bool:
        """Whether a process that has ended was one of these."""
        for session in self._sessions.values():
            if session.pid == pid and session.status is None:
                session.has_ended(status)
                return True
        return False

    def _open(self, name: str, command: str) -> None:
        if command.split() == ["hostname", "-I"]:
            command = "echo " + self._address

        def send(what: str, **facts: Unpack[ShellFacts]) -> None:
            self._send({**facts, "type": "shell", "session": name, "what": what})

        def over() -> None:
            del self._sessions[name]

        try:
            self._sessions[name] = _Session(self._loop, command, self._environment, self._grace, send, over)
        except OSError as error:
            send("refused", message="cannot start the command: %s" % error)
        else:
            send("opened")


class _Session:
    """One command: from its start until all that it wrote has been told."""

    def __init__(
        self,
        loop: Loop,
        command: str,
        environment: Mapping[str, str],
        grace: float,
        send: SendShell,
        over: Callable[[], None],
    ) -> None:
        self.status: Optional[int] = None
        self._is_over = False
        self._loop = loop
        self._grace = grace
        self._send = send
        self._over = over
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        self._ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        try:
            self.pid = processes.start_piped(processes.shell_argv(command), environment, theirs)
        except OSError:
            for file in self._ours:
                os.close(file)
            raise
        finally:
            for file in theirs:
                os.close(file)
        for file in self._ours:
            os.set_blocking(file, False)
        self._input = Sink(loop, self._ours[0], self._close_input, _PIECE)
        self._unread = [1, 2]
        self._outputs = {number: self._source(number) for number in (1, 2)}

    def heard(self, message: Shell) -> None:
        what = message["what"]
        if what == "data":
            data = base64.b64decode(message["data"])
            self._input.write(data, lambda: self._send("taken", count=len(data)))
        elif what == "eof":
            self._input.after(self._close_input)
        elif what == "taken":
            self._outputs[message["stream"]].taken(message["count"])
        elif what == "signal" and self.status is None:
            try:
                os.killpg(self.pid, message["signal"])
            except (ProcessLookupError, PermissionError):
                pass
        elif what == "gone":
            self._end()

    def has_ended(self, status: int) -> None:
        """What is in its pipes is the last that is sent, though others may hold them open that it has left behind."""
        self.status = status
        self._close_input()
        for number in list(self._unread):
            self._outputs[number].drain()
        self._check()

    def _source(self, number: int) -> Source:
        def read(data: bytes) -> None:
            self._send("data", stream=number, data=base64.b64encode(data).decode())

        def ended() -> None:
            self._unread.remove(number)
            self._check()

        return Source(self._loop, self._ours[number], read, ended)

    def _close_input(self) -> None:
        if self._ours[0] >= 0:
            file, self._ours[0] = self._ours[0], -1
            self._input.close()
            os.close(file)

    def _check(self) -> None:
        if self.status is not None and not self._unread and not self._is_over:
            code, _ = processes.exit_code(self.status)
            self._send("ended", exit_code=code)
            self._finish()

    def _finish(self) -> None:
        self._is_over = True
        for file in self._ours[1:]:
            self._loop.forget(file)
            os.close(file)
        self._over()

    def _end(self) -> None:
        """Whoever asked for the command has gone: SIGTERM, the job's grace time, SIGKILL. Nobody hears of it."""
        self._send = lambda what, **facts: None
        for number in self._unread:
            self._outputs[number].close()
        self._unread = []
        if self.status is not None:
            self._check()
            return
        self._tell(signal.SIGTERM)
        self._loop.later(self._grace, lambda: self._tell(signal.SIGKILL))

    def _tell(self, signum: int) -> None:
        if self.status is None:
            processes.send([self.pid, *processes.descendants(self.pid)], signum)
