"""A node's logs and events through its stdout, for engines that show no more of a node than that.

Each line of the output is a record, for people and for `parse`:

    rank-3:0| epoch 1 loss 2.3       a whole line of logs/node-K/rank-3.log, which begins at byte 0 of the file
    rank-3:17+ 10%                   a part of a line; the next record of the file goes on at byte 20
    rank-3:20\\| \\r20%\\xff           with a backslash before the mark, bytes are written as \\\\, \\r or \\xHH
    launcher:0| ...                  any file NAME.log of the node's folder
    node-1.rank-3:0| ...             the same of another node's folder: of a rank that mpirun has started here
    events:0| {"t":1,...}            the run's events
    report:0| {"run":...}            its report, as one line
    end:0| 7                         the last one: the exit code of the bootstrap
    stacks-1a2b:0| {"id":...}        the answer to a request, as one line

The offsets make it possible to read the output again from any point: what is there already is known, and so is what is
missing. Records hold valid UTF-8 without control characters but tab and escape, so that no reader of text spoils them.

With JOBSDK_LED=1 the node's stdin is read: a line is a request, as the files of `requests` are. Its end says that who
has started the node is gone or has done with it, and is to the node what SIGTERM is.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import sys
import time
import traceback
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from ..spec import events, exit_codes, paths, variables
from ..system import files, private, processes

EVENTS, REPORT, END, BOOTSTRAP = "events", "report", "end", "bootstrap"
STACKS = "stacks-"  # and the request's name
_PIECE = 4000  # bytes; engines cut lines of 16 KiB, and escaping may make a piece four times as long
_CHUNK = 1 << 20  # bytes that are read from one file in one go
_PATIENCE_S = 1.0  # seconds that an unended line may wait for its end
_BUSY, _IDLE = 0.02, 0.2  # seconds between two looks
_LAST_WORDS_S = 5.0  # seconds for what is left when nobody reads it

_REQUEST = re.compile("cancel|stacks-[0-9A-Za-z]+")
_RECORD = re.compile(rb"([a-z][\w.-]*):(\d+)(\\?)([|+]) (.*)", re.DOTALL)
_UNSAFE = re.compile(rb"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]")
_ESCAPED = re.compile(rb"\\(?:(\\)|(r)|x([0-9a-f]{2}))")
_TO_ESCAPE = re.compile(rb"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\xff\\]")


class Record(NamedTuple):
    """A piece of a file: `data` begins at byte `offset`, and has the line's end if it is whole."""

    source: str
    offset: int
    data: bytes


# -- the form ----------------------------------------------------------------------------------------------------------


def parse(line: bytes) -> Optional[Record]:
    """The record in a line of the output, which may have its end; None for anything else."""
    found = _RECORD.fullmatch(line[:-1] if line.endswith(b"\n") else line)
    if found is None:
        return None
    source, offset, escaped, mark, text = found.groups()
    data = _ESCAPED.sub(_unescape, text) if escaped else text
    return Record(source.decode("ascii"), int(offset), data + b"\n" if mark == b"|" else data)


def form(source: str, offset: int, data: bytes) -> bytes:
    """Records of `data`, which lies at `offset` of its file; a last line without an end becomes a part."""
    head = source.encode("ascii") + b":"
    is_plain = _is_plain(data)
    records: List[bytes] = []
    for line in data.split(b"\n"):
        end = offset + len(line)
        while end - offset > _PIECE:
            cut = _cut(line)
            records.append(_record(head, offset, b"+", line[:cut], is_plain))
            line, offset = line[cut:], offset + cut
        records.append(_record(head, offset, b"|", line, is_plain))
        offset = end + 1
    last = records.pop()
    if not data.endswith(b"\n"):  # the last is a line without an end, else nothing at all
        mark = last.index(b"| ")
        records.append(last[:mark] + b"+" + last[mark + 1 :])
    return b"".join(records)


def _record(head: bytes, offset: int, mark: bytes, text: bytes, is_plain: bool) -> bytes:
    if is_plain or _is_plain(text):
        return b"%b%d%b %b\n" % (head, offset, mark, text)
    try:
        text.decode()
        pattern = re.compile(_UNSAFE.pattern + rb"|\\")  # the rest can stay readable
    except UnicodeDecodeError:
        pattern = _TO_ESCAPE
    return b"%b%d\\%b %b\n" % (head, offset, mark, pattern.sub(_escape, text))


def _is_plain(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return _UNSAFE.search(data) is None


def _cut(line: bytes) -> int:
    """Where a long line is cut: not within a character, as long as there are characters."""
    return next((end for end in range(_PIECE, _PIECE - 4, -1) if line[end] & 0xC0 != 0x80), _PIECE)


def _escape(found: re.Match[bytes]) -> bytes:
    text = found.group()
    return {b"\\": b"\\\\", b"\r": b"\\r"}.get(text) or b"".join(b"\\x%02x" % byte for byte in text)


def _unescape(found: re.Match[bytes]) -> bytes:
    backslash, carriage_return, code = found.groups()
    return b"\\" if backslash else b"\r" if carriage_return else bytes([int(code, 16)])


# -- the node's side ---------------------------------------------------------------------------------------------------


def run(run_dir: str, rank: Optional[int], work: Callable[[], int]) -> int:
    """Do `work` in a process of its own, and write what it leaves in `run_dir`, the node's own folder, to stdout.

    What `work` says on stdout and stderr is the log `bootstrap`. SIGTERM and SIGINT are passed on. Who reads stdout
    slowly, or not at all, holds up only this process. Returns what `work` returned, or 128 + the signal that ended it.
    """
    folder = run_dir + "/logs" if rank is None else paths.node_logs(run_dir, rank)
    os.makedirs(folder, exist_ok=True)
    log = private.open_file("%s/%s.log" % (folder, BOOTSTRAP), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    signals = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    pid = os.fork()
    if pid == 0:
        _work(work, log, signals)
    os.close(log)
    processes.become_subreaper()
    writer = _Writer(run_dir, folder)
    leader = _Leader(run_dir, pid) if os.environ.get(variables.LED) else None
    with _Child(pid, writer, leader) as child:
        for number in signals:
            signal.signal(number, lambda got, _: _pass_on(pid, got))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        while child.code is None:
            child.wait(_BUSY if writer.round() else _IDLE)
        processes.kill_descendants()  # of a bootstrap that was killed
        writer.finish(child.code)
        if leader is not None and not leader.is_there:  # the folder was for who has led us alone
            shutil.rmtree(run_dir, ignore_errors=True)
        return child.code


class _Leader:
    """Who has started the node, at the other end of stdin."""

    def __init__(self, run_dir: str, pid: int) -> None:
        self._run_dir = run_dir
        self._pid = pid
        self._heard = b""
        self.is_there = True

    def hear(self) -> None:
        said = os.read(0, 4096)
        if not said:
            self.is_there = False
            _pass_on(self._pid, signal.SIGTERM)
        *lines, self._heard = (self._heard + said).split(b"\n")
        for line in lines:
            request = line.decode("ascii", "replace")
            if _REQUEST.fullmatch(request):
                folder = self._run_dir + "/requests"
                os.makedirs(folder, exist_ok=True)
                open("%s/%s" % (folder, request), "w").close()


class _Child:
    """The process that does the work. Once it has ended, nobody waits long for a reader of stdout that is stuck."""

    def __init__(self, pid: int, writer: _Writer, leader: Optional[_Leader]) -> None:
        self.code: Optional[int] = None
        self._pid = pid
        self._writer = writer
        self._leader = leader

    def __enter__(self) -> _Child:
        self._woken, self._waker = os.pipe()
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGALRM, self._look_at_reader)
        signal.signal(signal.SIGCHLD, self._look)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._look()
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(-1)

    def wait(self, seconds: float) -> None:
        """For that long, or until a signal comes."""
        if self.code is not None:
            return
        leader = self._leader if self._leader is not None and self._leader.is_there else None
        ready = select.select([self._woken] + ([0] if leader else []), [], [], seconds)[0]
        if self._woken in ready:
            os.read(self._woken, 4096)
        if leader is not None and 0 in ready:
            leader.hear()

    def _look(self, *_: object) -> None:
        status = processes.reap().get(self._pid)
        if status is not None:
            self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            self._written = -1
            signal.setitimer(signal.ITIMER_REAL, _LAST_WORDS_S, _LAST_WORDS_S)

    def _look_at_reader(self, *_: object) -> None:
        if self._writer.written == self._written:
            os._exit(exit_codes.FAULT if self.code is None else self.code)
        self._written = self._writer.written


def _work(work: Callable[[], int], log: int, signals: Tuple[int, ...]) -> None:
    code = exit_codes.FAULT
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        code = work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else exit_codes.FAULT
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _pass_on(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


class _Writer:
    """Follows the files of a node, and writes their records to stdout."""

    def __init__(self, run_dir: str, folder: str) -> None:
        self._run_dir = run_dir
        self._folder = folder
        self._told: Dict[str, int] = {}  # source -> up to where it has been written
        self._seen: Dict[str, Tuple[int, float]] = {}  # where an unended line begins, and since when it is known
        self._is_read = True  # whether anybody may still read stdout
        self.written = 0  # bytes

    def round(self, is_last: bool = False) -> bool:
        """Write what is new; whether there was anything. A record of an event comes after the lines before it."""
        events = self._run_dir + "/events.jsonl"
        reported, until = os.path.exists(self._run_dir + "/report.json"), files.size(events)
        moved = False
        for source, path in self._logs():
            end = files.size(path)
            while self._copy(source, path, end, is_last):
                moved = True
        if reported and REPORT not in self._told:
            self._tell_json(REPORT, "report.json")
        for name in os.listdir(self._run_dir):
            if name.startswith(STACKS) and name.endswith(".json") and name[:-5] not in self._told:
                self._tell_json(name[:-5], name)
        while self._copy(EVENTS, events, until, is_last):
            moved = True
        return moved

    def _logs(self) -> List[Tuple[str, str]]:
        """The existing logs: (source, path)."""
        logs, own = self._run_dir + "/logs", os.path.basename(self._folder)
        folders = [("", self._folder)]
        folders += [(name + ".", "%s/%s" % (logs, name)) for name in sorted(os.listdir(logs)) if _is_other(name, own)]
        return [
            (prefix + name[:-4], "%s/%s" % (folder, name))
            for prefix, folder in folders
            for name in sorted(os.listdir(folder))
            if name.endswith(".log")
        ]

    def finish(self, code: int) -> None:
        """Write all that is left, and the last record."""
        while self.round(is_last=True):
            pass
        self._write(form(END, 0, b"%d\n" % code))

    def _copy(self, source: str, path: str, until: int, is_last: bool) -> bool:
        """Write records of the next chunk of a file, up to `until`."""
        begin = self._told.get(source, 0)
        if until <= begin:
            return False
        with open(path, "rb", buffering=0) as file:
            file.seek(begin)
            data = file.read(min(until - begin, _CHUNK))
        whole = data.rfind(b"\n") + 1
        if len(data) - whole <= _PIECE and not is_last and not self._waited(source, begin + whole):
            data = data[:whole]
        if not data:
            return False
        self._write(form(source, begin, data))
        self._told[source] = begin + len(data)
        return True

    def _waited(self, source: str, begin: int) -> bool:
        """Whether the line at `begin`, which has no end, has waited long enough for one."""
        now = time.monotonic()
        known, since = self._seen.get(source, (-1, now))
        if known != begin:
            self._seen[source] = begin, now
        return known == begin and now - since > _PATIENCE_S

    def _tell_json(self, source: str, name: str) -> None:
        self._told[source] = 1
        content = events.read_json("%s/%s" % (self._run_dir, name))
        self._write(form(source, 0, json.dumps(content, separators=(",", ":")).encode() + b"\n"))

    def _write(self, records: bytes) -> None:
        view = memoryview(records)
        try:
            while self._is_read and view:
                count = os.write(1, view)
                view = view[count:]
                self.written += count
        except OSError:  # nobody reads any more
            self._is_read = False


def _is_other(name: str, own: str) -> bool:
    return name != own and re.fullmatch(r"node-\d+", name) is not None
