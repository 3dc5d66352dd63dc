"""`pdsh` for launchers: one command on many nodes at once, over one connection to the control port."""

from __future__ import annotations

import re
import sys
from typing import Callable, Dict, List, NamedTuple, Optional

from . import shims
from .ssh import FAILED, Command, ShellClient, instead
from .stream_copy import Sink

#: pdsh(1): options that take a value.
_WITH_VALUE = "wxfltuRgj"


class Call(NamedTuple):
    """What pdsh was asked to do."""

    hosts: List[str]
    command: str
    is_named: bool  # each line begins with its host (not -N)
    tells: bool  # the exit code is the largest one (-S)


def parse(words: List[str]) -> Optional[Call]:
    """What pdsh's arguments ask for; None where that is not done here (host ranges, no command)."""
    hosts: List[str] = []
    left: List[str] = []
    is_named, tells, place = True, False, 0
    while place < len(words) and words[place].startswith("-"):
        for index, letter in enumerate(words[place][1:], 2):
            is_named = is_named and letter != "N"
            tells = tells or letter == "S"
            if letter in _WITH_VALUE:
                value = words[place][index:]
                if not value:
                    place += 1
                    value = words[place] if place < len(words) else ""
                if letter == "w":
                    hosts += [host for host in value.split(",") if host]
                elif letter == "x":
                    left += value.split(",")
                elif letter in "gj":
                    return None
                break
        place += 1
    hosts = [host.rpartition("@")[2].rpartition(":")[2] for host in hosts if host not in left]
    command = " ".join(words[place:])
    return Call(hosts, command, is_named, tells) if hosts and command and "[" not in "".join(hosts) else None


def for_host(command: str, host: str, number: int) -> str:
    """The command with %h and %n put in: the host's name, and its number in the list."""
    known = {"%h": host, "%n": str(number), "%%": "%"}
    return re.sub("%[hn%]", lambda found: known[found[0]], command)


class _Lines:
    """What one host writes to one stream, line by line."""

    def __init__(self, sink: Sink, prefix: bytes) -> None:
        self._sink = sink
        self._prefix = prefix
        self._rest = b""

    def write(self, data: bytes, taken: Callable[[], None]) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._sink.write(b"".join(b"%s%s\n" % (self._prefix, line) for line in lines), taken)

    def end(self) -> None:
        if self._rest:
            self.write(b"\n", lambda: None)


def run(words: List[str]) -> int:
    """The verb `pdsh`: 0, or with -S the largest exit code of any node."""
    place = shims.place()
    call = parse(words)
    if call is None:
        return instead(place, words, "usage: pdsh -w HOST,HOST,... COMMAND ... (no host ranges)")
    codes: Dict[int, int] = {}
    commands: List[Command] = []
    sinks: Dict[int, Sink] = {}

    def begin(number: int, host: str) -> None:
        prefix = b"%s: " % host.encode() if call.is_named else b""
        lines = {stream: _Lines(sinks[stream], prefix) for stream in sinks}

        def ended(code: int) -> None:
            if command.trouble and not command.unknown:
                sys.stderr.write("%s: jobsdk: remote shell: %s\n" % (host, command.trouble))
            for stream in lines.values():
                stream.end()
            codes[number] = code
            if len(codes) == len(call.hosts):
                sinks[1].after(lambda: sinks[2].after(lambda: shell.stop(max(codes.values()) if call.tells else 0)))

        command = Command(
            lambda stream, data, taken: lines[stream].write(data, taken), lambda: command.send("eof"), ended
        )
        commands.append(command)
        shell.start(command, host, for_host(call.command, host, number))

    def joined() -> None:
        for number, host in enumerate(call.hosts):
            begin(number, host)

    shell = ShellClient(place, joined)
    for stream in (1, 2):
        sinks[stream] = Sink(shell.loop, stream, lambda: shell.stop(FAILED))
    code = shell.run()
    unknown = [command.trouble for command in commands if command.unknown]
    if len(unknown) == len(call.hosts):
        return instead(place, words, unknown[0])
    for text in unknown:
        sys.stderr.write("jobsdk: remote shell: %s\n" % text)
    return code
