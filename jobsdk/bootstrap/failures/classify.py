"""What a failure was, judged by its message: class, words, advice; and which of several was the first.

A failure's message is that of a rank (or a node, or the job) that ended, from its node: t, node, rank, exit_code,
signal, stopped, evidence (see `evidence`), and failure.last_words of its log. All but t and exit_code may be missing.
"""

from __future__ import annotations

import functools
import re
import signal
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from ..spec import exit_codes
from ..spec.text import bytes_text
from . import known_errors
from .known_errors import CHILD, CLASSES, ROOT, SIGNS, SILENT, STOPPED, VICTIM, Sign

if TYPE_CHECKING:
    from ..spec.report import RankEnd as Record

#: What TensorFlow and torch log by the way, also when all is well: "W0000 00:00:17..", "[W1121 21:59:23.8 ...".
_BY_THE_WAY = re.compile(r"(\[?[IW]|E)\d{4} \d\d:\d\d|\S+ \S+: [IWE] (tensorflow|external)/|WARNING|\[?INFO|\[?DEBUG")
#: Of these the text may differ from rank to rank (how much was free, who the peer was), and it is one error still.
_ONE_ERROR = frozenset(
    "out_of_memory cuda_out_of_memory shared_memory disk_full port_in_use peer_lost collective_timeout nccl_error"
    " gloo_error rendezvous_timeout segmentation_fault bus_error worker_killed mpi_abort".split()
)


class _Finding(NamedTuple):
    name: str  # the class
    detail: str = ""  # the line that says it best
    sign: Optional[Sign] = None  # by which it was found
    child: Optional[int] = None  # the signal that killed a process of the rank, while the rank itself ended by a code


def judge(record: Record) -> Dict[str, Any]:
    """`class`; `words`, which complete "rank 3 on node 1 ..."; `advice`, one line or None; `secondary`: it only died of
    another's failure; `port`: the number of the port that is in use, where it is known.

    A record that has a `class` keeps it.
    """
    found = _classify(record)
    kind = CLASSES.get(found.name, CLASSES["exit"])
    facts = _facts(record, found)
    return {
        "class": found.name,
        "words": _words(record, found, kind.words, facts),
        "advice": _advice(record, found, kind.advice, facts),
        "secondary": kind.place == VICTIM or bool(record.get("stopped")),
        "port": _port(found.detail, record) if found.name == "port_in_use" else None,
    }


def likelihood(record: Record) -> Tuple[int, float]:
    """The order of failures by which is the cause of the others: the least is, in whatever order they arrived.

    Ends come in quick succession, and the one that is seen first need not be the one that happened first. What speaks
    of others (a lost connection, a timeout) and what says nothing (a bare exit code 1, a SIGTERM, a launcher's end)
    comes after what speaks for itself.
    """
    time = float(record["t"])
    if record.get("stopped"):
        return STOPPED, time
    found = _classify(record)
    place = CLASSES.get(found.name, CLASSES["exit"]).place
    if found.sign is not None and found.sign.place is not None:
        place = found.sign.place
    mute = record["exit_code"] == 1 and not any(line.strip() for line in record.get("last_lines") or ())
    silent = found.name == "exit" and (mute or record.get("rank", 0) is None)
    from_outside = found.name == "signal" and _signal(_end(record)) in known_errors.FROM_OUTSIDE
    return max(place, SILENT if silent or from_outside else ROOT), time


def speaks_for_itself(record: Record) -> bool:
    """Whether a failure may be the cause of others; if not, whoever it tells of may still need a moment to end."""
    return likelihood(record)[0] == ROOT


def same_error(one: Record, other: Record) -> bool:
    """Whether two ranks failed of the same: numbers of ranks and processes, ports, addresses and times do not count."""
    if one is other:
        return True
    first, second = _classify(one), _classify(other)
    if first.name != second.name or bool(one.get("stopped")) != bool(other.get("stopped")):
        return False
    if first.name in _ONE_ERROR:
        return True
    ends = [(record["exit_code"], _signal(_end(record))) for record in (one, other)]
    return ends[0] == ends[1] and _without_numbers(first.detail) == _without_numbers(second.detail)


def traceback_tells(record: Record) -> bool:
    """Whether the error in the output is why it ended: what was killed from outside may have written one before."""
    return _error_tells(_end(record))


# -- the class -------------------------------------------------------------------------------------------------------


class _End(NamedTuple):
    """What of a record tells its class."""

    known: str  # the class, where it has one
    exit_code: int
    signal: Optional[int]
    error: str
    traceback: str
    last_lines: Tuple[str, ...]
    oom_kills: int
    full_disk: bool


def _end(record: Record) -> _End:
    evidence: Mapping[str, Any] = record.get("evidence") or {}
    oom = evidence.get("oom") or {}
    return _End(
        record.get("class") or "",
        int(record.get("exit_code") or 0),
        record.get("signal"),
        record.get("error") or "",
        record.get("traceback") or "",
        tuple(record.get("last_lines") or ()),
        int(oom.get("kills") or 0),
        "disk" in evidence,
    )


def _classify(record: Record) -> _Finding:
    return _found(_end(record))


@functools.lru_cache(maxsize=4096)  # of a thousand ranks each is asked about several times
def _found(end: _End) -> _Finding:
    if end.known:
        return _Finding(end.known, end.error)
    error = end.error if _error_tells(end) else ""
    signum = _signal(end)
    if signum is not None and signum != signal.SIGABRT:
        if signum == signal.SIGKILL and end.oom_kills:
            return _Finding("out_of_memory")
        return _Finding(known_errors.BY_SIGNAL.get(signum, "signal"), error)
    if not error and end.exit_code in (126, 127):
        return _not_run(end)
    lines = [line for line in end.last_lines if line.strip()]
    said = [error, *_messages(end.traceback)] if error else _last_said(lines)
    text = "\n".join(said)
    child = re.search(CHILD, text) or re.search(CHILD, "\n".join(lines))
    if child is not None:
        return _of_child(end, child, error)
    for sign in SIGNS:
        if re.search(sign.pattern, text):
            line = next((line for line in said if re.search(sign.pattern, line)), text)
            return _Finding(sign.name, error or line.strip(), sign)
    if end.full_disk and not error and not signum:
        return _Finding("disk_full")  # where its log has no room either
    return _Finding("abort" if signum else "exception" if error else "exit", error)


def _error_tells(end: _End) -> bool:
    if not end.error:
        return False
    return _signal(end) in (None, signal.SIGABRT, signal.SIGINT) or end.error.startswith("Fatal Python error: ")


def _not_run(end: _End) -> _Finding:
    """What a shell says of a command that it could not run."""
    name, words = "not_executable", r"denied|Is a directory|cannot execute|Exec format"
    if end.exit_code == 127:
        name, words = "command_not_found", r"not found|No such file"
    line = next((line for line in reversed(end.last_lines) if re.search(words, line)), "")
    sign = next((sign for sign in SIGNS if sign.name == "import_error" and re.search(sign.pattern, line)), None)
    return _Finding(sign.name if sign else name, line.strip(), sign)


def _last_said(lines: List[str]) -> List[str]:
    """What may be a program's last word, the last first."""
    return [line for line in reversed(lines) if not _BY_THE_WAY.match(line)]


def _of_child(end: _End, found: re.Match[str], error: str) -> _Finding:
    word = (found.group(1) or found.group(2)).lower()
    if word.isdigit():
        signum = int(word)
    else:
        signum = known_errors.CHILD_SIGNALS.get(word) or int(getattr(signal, word.upper()))
    detail = error or found.group()
    if signum == signal.SIGKILL:
        return _Finding("out_of_memory" if end.oom_kills else "worker_killed", detail, child=signum)
    return _Finding(known_errors.BY_SIGNAL[signum], detail, child=signum)


def _signal(end: _End) -> Optional[int]:
    """The signal that ended the rank, or (as shells and launchers pass it on, 128 + n) the process that it ran."""
    if end.signal is not None:
        return end.signal
    signum = end.exit_code - 128
    if signum in (signal.SIGINT, signal.SIGTERM) and end.error:  # a program that ended in order
        return None
    return signum if signum in (signal.SIGKILL, signal.SIGTERM, *known_errors.BY_SIGNAL) else None


def _messages(traceback: str) -> List[str]:
    """What the exceptions of a traceback say, without frames and source lines."""
    return re.sub(r'(?m)^([ |+]*)File ".*\n(?:\1 .*\n)*', "", traceback + "\n").split("\n")


# -- words -----------------------------------------------------------------------------------------------------------


def _facts(record: Record, found: _Finding) -> Dict[str, Any]:
    """What templates may name, as far as it is known."""
    evidence: Mapping[str, Any] = record.get("evidence") or {}
    disk, oom = evidence.get("disk") or {}, evidence.get("oom") or {}
    port = _port(found.detail, record) if found.name == "port_in_use" else None
    how = exit_codes.describe(int(record.get("exit_code") or 0), record.get("signal"))
    signum = _signal(_end(record))
    if record.get("signal") is None and signum is not None:
        how = "%s (%s)" % (how, exit_codes.signal_name(signum))
    facts = {
        "how": how,
        "error": found.detail if found.name == "mpi_library" else _short(found.detail),
        "way": found.detail.partition(" a world of size 1; ")[2] or None,
        "port": "a port that is" if port is None else "port %d" % port,
        "interface": evidence.get("interface"),
        "master": evidence.get("master"),
        "path": disk.get("path"),
        "free": _size(disk.get("free")),
        "shm": _size(disk.get("size")) if disk.get("path") == "/dev/shm" else None,
        "limit": _size(oom.get("limit")),
    }
    return {key: value for key, value in facts.items() if value is not None}


def _words(record: Record, found: _Finding, template: str, facts: Mapping[str, Any]) -> str:
    if found.name == "out_of_memory" and _end(record).oom_kills:
        who = facts["how"] if found.child is None else "a process of it was killed by SIGKILL"
        limit = " (limit of its cgroup: %s)" % facts["limit"] if "limit" in facts else ""
        return "ran out of memory and %s%s" % (who, limit)
    if found.name == "disk_full" and not found.detail:
        return "%s, and the disk of %s is full" % (facts["how"], facts["path"])
    words = template.format(**facts)
    if not facts["error"]:
        return words.rpartition(": ")[0] if words.endswith(": ") else words
    if found.child is not None and found.name != "worker_killed":
        words += " in a process that it had started"
    return words


def _advice(record: Record, found: _Finding, general: Iterable[str], facts: Mapping[str, Any]) -> Optional[str]:
    """The first line of which all is known."""
    if not record.get("class"):
        words = "\n".join([record.get("traceback") or "", *(record.get("last_lines") or [])])
        for pattern, line in known_errors.ADVICE:
            if re.search(pattern, words):
                return line
    for template in (*(found.sign.advice if found.sign else ()), *general):
        if all(key in facts for key in re.findall(r"{(\w+)}", template)):
            return template.format(**facts)
    return None


def _port(detail: str, record: Record) -> Optional[int]:
    """The port that is in use: as the error says it, or the only one that the rank was given."""
    found = re.search(r"(?i)\bport:? (\d{1,5})\b|[\]\w]:(\d{1,5})\b|\('[^']*', (\d{1,5})\)", detail)
    if found is None:  # TensorFlow logs it and raises something else
        logged = "\n".join(record.get("last_lines") or [])
        found = re.search(r"add port to server:.*:(\d{1,5})'()()", logged)
    if found is not None:
        return int(found.group(1) or found.group(2) or found.group(3))
    ours = (record.get("evidence") or {}).get("ports") or []
    return int(ours[0]) if len(ours) == 1 else None


def _short(text: str) -> str:
    """An error for a line of words: without the module of its class and the paths of C++ files."""
    text = re.sub(r"^(?:[a-z_]\w*\.)+(?=[A-Z]\w*(?::|$))", "", text)
    text = re.sub(r"(?:\.\./|/)(?:[\w.+-]+/)+(?=[\w.-]+\.(?:cc|cpp|cu|h|hpp):\d)", "", text)
    return text if len(text) <= 200 else text[:197] + "..."


def _size(count: Optional[int]) -> Optional[str]:
    return None if count is None else bytes_text(count)


_NUMBERS = re.compile(
    r"\[?\b(?:\d{1,3}\.){3}\d{1,3}\b\]?(:\d+)?|\[[0-9a-fA-F:]*:[0-9a-fA-F:]*\](:\d+)?|0x[0-9a-fA-F]+"
    r"|\d{4}-\d\d-\d\d[T _]?|\d+:\d\d(:\d\d[\d.,]*)?"
    r"|(?i:\b(local_rank|rank|node|pids?|pid\(s\)|process|worker|task|port|cuda|gpu|device|peer)[ :=\[#(]*\d+)"
)


def _without_numbers(text: str) -> str:
    return _NUMBERS.sub("#", text)
