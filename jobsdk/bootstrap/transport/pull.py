"""The verb `pull`: sends what is new in a run's folder to whoever asks over ssh.

It reads one JSON object from stdin, {path: [size, crc32]}: how much of each file the asker has, and the checksum of the
last bytes of that (for the events: how much was taken in, and 0). It writes frames behind MARK: a line of JSON {"path",
"at", "size"}, then `size` bytes, which belong at `at` of that file; at 0 the file starts over. The last line has "end":
true; without it the answer was torn off. A file of which the asker's part is not the beginning is sent as a whole;
answers to requests (`stacks-ID.json`) are sent once. The events come last, as they were before anything else was read:
what they tell of has been sent by then.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from typing import Any, BinaryIO, Dict, Iterator, List, Optional

from ..spec import pidfile

MARK = b"\n\0jobsdk\0"
EVENTS, REPORT = "events.jsonl", "report.json"
FOLDERS = ("logs", "mlruns")
#: How many bytes at the end of what the asker has are compared.
TAIL = 1024
_CHUNK = 1 << 20

Part = Optional[List[int]]


def run(run_dir: str) -> int:
    """Answer one question."""
    have: Dict[str, List[int]] = json.loads(sys.stdin.buffer.read() or b"{}")
    out = sys.stdout.buffer
    living = pidfile.living(run_dir)  # before the events: who is dead now has said all that it will ever say
    taken = have.get(EVENTS, [0, 0])[0]
    events = _events(run_dir, taken)
    out.write(MARK)
    for path in _paths(run_dir):
        _send(out, run_dir, path, have.get(path))
    if REPORT not in have:
        _send(out, run_dir, REPORT, None)
    for name in os.listdir(run_dir):
        if is_answer(name):
            _send(out, run_dir, name, None)
            os.unlink("%s/%s" % (run_dir, name))
    if events:
        _frame(out, EVENTS, taken, events)
    out.write(json.dumps({"end": True, "living": living}).encode() + b"\n")
    out.flush()
    return 0


def is_answer(name: str) -> bool:
    """Whether a file of a run's folder is an answer to a request: see `requests`."""
    return name.startswith("stacks-") and name.endswith(".json")


def checksum(file: BinaryIO, size: int) -> int:
    """The crc32 of the last bytes of the first `size`."""
    start = max(0, size - TAIL)
    file.seek(start)
    return zlib.crc32(file.read(size - start))


def _events(run_dir: str, taken: int) -> bytes:
    """The whole lines that are new."""
    try:
        with open("%s/%s" % (run_dir, EVENTS), "rb") as file:
            file.seek(taken)
            data = file.read()
    except FileNotFoundError:
        return b""
    return data[: data.rfind(b"\n") + 1]


def _paths(run_dir: str) -> Iterator[str]:
    """The files of the folders that are sent, without MLflow's artifacts."""
    for name in FOLDERS:
        for folder, below, names in os.walk("%s/%s" % (run_dir, name)):
            if name == "mlruns" and "artifacts" in below:
                below.remove("artifacts")
            for one in names:
                path = os.path.join(folder, one)
                if not one.endswith(".tmp") and os.path.isfile(path) and not os.path.islink(path):
                    yield os.path.relpath(path, run_dir)


def _send(out: BinaryIO, run_dir: str, path: str, have: Part) -> None:
    try:
        with open("%s/%s" % (run_dir, path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            at = 0
            if have is not None and have[0] <= size and checksum(file, have[0]) == have[1]:
                if have[0] == size:
                    return
                at = have[0]
            file.seek(at)
            while True:
                data = file.read(min(_CHUNK, size - at))
                _frame(out, path, at, data)
                at += len(data)
                if at >= size or not data:  # a file that was cut short meanwhile is seen to by the next pull
                    return
    except FileNotFoundError:
        pass  # gone since it was listed, or not there yet


def _frame(out: BinaryIO, path: str, at: int, data: bytes) -> None:
    head: Dict[str, Any] = {"path": path, "at": at, "size": len(data)}
    out.write(json.dumps(head).encode() + b"\n")
    out.write(data)
