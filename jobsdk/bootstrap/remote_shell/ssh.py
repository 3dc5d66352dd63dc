"""`ssh` and `rsh` for launchers: a command on another node of the job, over the control port.

It stands in for the system's `ssh` on the PATH of what the job runs (see `shims`), takes its arguments, and passes on
stdin, stdout, stderr, signals and the exit code. For a host that is no node of the job it becomes the next `ssh` on
PATH.
"""

from __future__ import annotations

import base64
import os
import signal
import sys
from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, NoReturn, Optional, cast

from ..control.channel import Message
from ..control.client import ControlClient
from ..control.loop import Loop
from ..distributions import open_mpi
from ..launchers import base
from . import shims
from .stream_copy import Sink, Source

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..spec.messages import SendShell, Shell, ShellFacts

FAILED = 255  # as ssh has it: the command could not be started, or the connection was lost
_JOIN_TIMEOUT_S = 30.0  # seconds; the control port is there as long as the job is
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: ssh(1): options that take a value, which may be in the same word.
_WITH_VALUE = "BbcDEeFIiJLlmOoPpQRSWw"


#: Takes a stream's number, what came of it, and what is to be called when that is done with.
Output = Callable[[int, bytes, Callable[[], None]], None]


class Call(NamedTuple):
    """What ssh was asked to do."""

    host: str
    command: str  # empty: a shell
    reads: bool  # whether stdin is for the command


class ShellClient:
    """A member of the control port that has commands run on nodes; `run` lives until `stop`."""

    def __init__(self, place: shims.ShimConfig, on_join: Callable[[], None]) -> None:
        self.loop = Loop()
        self.code = FAILED
        self._place = place
        self._number = int.from_bytes(os.urandom(6), "big")
        self._commands: Dict[str, Command] = {}
        self._client = ControlClient(
            self.loop, [place.address], [place.port], bytes.fromhex(place.token), "shell", self._number,
            _JOIN_TIMEOUT_S, on_join, self._message, self._lost,
        )  # fmt: skip
        for signum in _SIGNALS:
            self._pass_on(signum)

    def run(self) -> int:
        self.loop.run()
        return self.code

    def stop(self, code: int) -> None:
        self.code = code
        self.loop.stop()

    def start(self, command: Command, host: str, text: str) -> None:
        name = "%d.%d" % (self._number, len(self._commands))
        self._commands[name] = command

        def send(what: str, **facts: Unpack[ShellFacts]) -> None:
            message: Shell = {**facts, "type": "shell", "session": name, "what": what}
            self._client.send(message)

        command.send = send
        asked: ShellFacts = {"host": host, "command": text, "from": self._place.node}
        send("open", **asked)

    def _message(self, message: Message) -> None:
        if message["type"] == "shell":
            self._commands[message["session"]].heard(cast("Shell", message))

    def _pass_on(self, signum: int) -> None:
        def told() -> None:
            if not any(command.is_running for command in self._commands.values()):
                self.stop(128 + signum)
            for command in self._commands.values():
                if command.is_running:
                    command.send("signal", signal=signum)

        self.loop.on_signal(signum, told)

    def _lost(self, why: str) -> None:
        sys.stderr.write("jobsdk: remote shell: %s\n" % why)
        self.stop(FAILED)


class Command:
    """A command on one node, as who asked for it sees it.

    `ended(code)` is called once; what kept it from being started is in `trouble`, and `unknown` says whether that was
    the host's name.
    """

    def __init__(self, output: Output, opened: Callable[[], None], ended: Callable[[int], None]) -> None:
        self.is_running = False
        self.trouble = ""
        self.unknown = False
        self.send: SendShell = lambda what, **facts: None
        self.source: Optional[Source] = None
        self._output = output
        self._opened = opened
        self._ended = ended

    def read_from(self, loop: Loop, file: int) -> None:
        """From now on `file` is the command's stdin."""
        self.source = Source(
            loop, file, lambda data: self.send("data", data=base64.b64encode(data).decode()), lambda: self.send("eof")
        )

    def heard(self, message: Shell) -> None:
        what = message["what"]
        if what == "opened":
            self.is_running = True
            self._opened()
        elif what == "data":
            stream, data = message["stream"], base64.b64decode(message["data"])
            self._output(stream, data, lambda: self.send("taken", stream=stream, count=len(data)))
        elif what == "taken" and self.source is not None:
            self.source.taken(message["count"])
        elif what in ("ended", "refused", "unknown"):
            self.is_running = False
            if self.source is not None:
                self.source.close()
            self.trouble, self.unknown = message.get("message", ""), what == "unknown"
            self._ended(message.get("exit_code", FAILED))


def parse(words: List[str]) -> Optional[Call]:
    """What ssh's arguments ask for; None where that is nothing that is done here (`ssh -V`)."""
    reads, host, place = True, "", 0
    while place < len(words):
        word = words[place]
        if word == "--" or not word.startswith("-") or word == "-":
            if word == "--":
                place += 1
            if host or place == len(words):
                break
            host = words[place].rpartition("@")[2]
        else:
            for index, letter in enumerate(word[1:], 2):
                if letter in "VGQ":
                    return None
                if letter in "nf":
                    reads = False
                if letter in _WITH_VALUE:
                    place += index == len(word)  # the value is the next word
                    break
        place += 1
    return Call(host, " ".join(words[place:]), reads) if host else None


def run(words: List[str]) -> int:
    """The verb `sh`: as ssh; returns the command's exit code (128 + n for signal n), or 255."""
    place = shims.place()
    call = parse(words)
    if call is None:
        return instead(place, words, "usage: sh HOST COMMAND ...")
    outputs: Dict[int, Sink] = {}

    def output(stream: int, data: bytes, taken: Callable[[], None]) -> None:
        outputs[stream].write(data, taken)

    def opened() -> None:
        if call.reads:
            command.read_from(shell.loop, 0)
        else:
            command.send("eof")

    def ended(code: int) -> None:
        if command.trouble and not command.unknown:
            sys.stderr.write("jobsdk: remote shell: %s\n" % command.trouble)
        outputs[1].after(lambda: outputs[2].after(lambda: shell.stop(code)))

    command = Command(output, opened, ended)
    shell = ShellClient(place, lambda: shell.start(command, call.host, call.command or "exec ${SHELL:-sh}"))
    for stream in (1, 2):
        outputs[stream] = Sink(shell.loop, stream, lambda: shell.stop(128 + signal.SIGPIPE))
    code = shell.run()
    return instead(place, words, command.trouble) if command.unknown else code


def instead(place: shims.ShimConfig, words: List[str], why: str) -> int:
    """Become the program that would be there without us; without one say why that is needed, and return 255."""
    name = os.environ.pop(shims.NAME)
    os.environ.pop(shims.SHELL, None)
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        program = base.find("ssh" if name == open_mpi.SSH else name, folder)
        if program is not None and os.path.dirname(program) != place.folder:
            _become(program, words)
    sys.stderr.write("jobsdk: remote shell: %s\n" % why)
    return FAILED


def _become(program: str, words: List[str]) -> NoReturn:
    for signum in (*_SIGNALS, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_DFL)
    os.execv(program, [program, *words])  # nosec B606 # the next ssh on PATH, with the user's own words
