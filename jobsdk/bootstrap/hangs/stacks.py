"""Where the ranks are: the Python stacks of all their processes, with no change to the user's code.

py-spy reads them from outside, where it is installed and may. Otherwise each Python writes them itself, as it has been
armed to do when it started (see armed/sitecustomize.py). Either way the process goes on undisturbed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..launchers import base
from ..spec.text import ranges
from ..system import private, procfs
from . import arming

#: {"name", "main", "frames": [[function, file, line], ...], the innermost first}
Thread = Dict[str, Any]
#: {"pid", "command", "how": "py-spy" | "faulthandler" | "none", "why" (None, or why there are none), "threads"}
Process = Dict[str, Any]

_ANSWER_S = 2.0  # seconds that one process has to answer; it takes a few milliseconds
_AT_ONCE = 4  # py-spy processes at a time: each computes
_THREADS, _FRAMES = 32, 40  # of a process, and of a thread: what is told travels to node 0
_COMMAND = 80  # characters of a command line that are told

_PYTHON = re.compile(r"python[0-9.]*[a-z]?|pypy[0-9.]*")
_HEAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def start(path: str, pids_by_rank: Mapping[int, int], seconds: float) -> int:
    """Take the stacks of some ranks in a process of its own, whose pid this returns and which the caller reaps.

    It leaves {"ranks": {"0": [a Process, ...], ...}} in the file `path`, all at once, within about `seconds`.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        # The parent's handlers and files are not ours: who waits for the end of a socket waits for the parent's.
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(signum, signal.SIG_DFL)
        os.closerange(3, 1 + max(map(int, os.listdir("/proc/self/fd" if os.path.isdir("/proc/self") else "/dev/fd"))))
        found = take(list(pids_by_rank.values()), seconds)
        ranks = {str(rank): found[pid] for rank, pid in pids_by_rank.items()}
        private.replace(path, json.dumps({"ranks": ranks}).encode())
    except BaseException as error:
        os.write(2, ("stacks: %s: %s\n" % (type(error).__name__, error)).encode("utf-8", "replace"))
        os._exit(1)
    os._exit(0)


def take(roots: Sequence[int], seconds: float = 8.0) -> Dict[int, List[Process]]:
    """For each root pid its Python processes, and those below it, parents first; never takes much over `seconds`.

    For a tree without Python that is the one process that works, or nothing where all have ended.
    """
    deadline = time.monotonic() + seconds
    trees = procfs.trees(procfs.table(), roots)
    asked = {root: [one for one in tree if _is_python(one.pid)] or tree[-1:] for root, tree in trees.items()}
    found: Dict[int, Process] = {}
    questions = []
    for one in {one.pid: one for chosen in asked.values() for one in chosen}.values():
        why = _cannot_answer(one)
        found[one.pid] = {"pid": one.pid, "command": _command(one), "how": "none", "why": why, "threads": []}
        if why is None:
            questions.append(one.pid)
    answers = _by_py_spy(questions, deadline)
    for pid, threads in answers.items():
        found[pid].update(how="py-spy", threads=threads)
    for pid, answer in _by_faulthandler([pid for pid in questions if pid not in answers], deadline).items():
        threads = _parse(answer.text)
        found[pid].update(how="faulthandler" if threads else "none", why=answer.why, threads=threads)
    return {root: [found[one.pid] for one in chosen] for root, chosen in asked.items()}


def _is_python(pid: int) -> bool:
    return bool(_PYTHON.fullmatch(os.path.basename(procfs.link(pid, "exe")))) or _memory_file(pid) is not None


def _command(one: procfs.Stat) -> str:
    """The command line with the program's bare name, cut."""
    words = procfs.words(one.pid) or [one.name]
    text = " ".join([os.path.basename(words[0]), *words[1:]]).replace("\n", " ")
    return text if len(text) <= _COMMAND else text[: _COMMAND - 3] + "..."


def _cannot_answer(one: procfs.Stat) -> Optional[str]:
    """Why a process is not to be asked for its stacks."""
    if one.state == "T":
        return "stopped (SIGSTOP)"
    if one.state == "t":
        return "stopped by a debugger"
    if _is_python(one.pid):
        return None
    if not procfs.words(one.pid) or not procfs.link(one.pid, "exe"):
        return "%s: not permitted to look into it" % one.name
    return "%s: not Python, %s" % (one.name, _waits_for(one))


def _waits_for(one: procfs.Stat) -> str:
    if one.state == "R":
        return "computing"
    try:
        with open("/proc/%d/wchan" % one.pid) as file:
            place = file.read().strip()
    except OSError:
        place = ""
    what = "waiting" if one.state == "S" else "waiting for a device (state %s)" % one.state
    return "%s in %s" % (what, place) if place not in ("", "0") else what


# -- asked from outside ------------------------------------------------------------------------------------------


def _by_py_spy(pids: Sequence[int], deadline: float) -> Dict[int, List[Thread]]:
    """The stacks of those that py-spy can read; none where there is no py-spy, or it may not."""
    program = base.find("py-spy")
    if program is None or not pids:
        return {}
    import subprocess
    from concurrent.futures import ThreadPoolExecutor

    failed: List[int] = []

    def look(pid: int) -> List[Thread]:
        left = deadline - _ANSWER_S - time.monotonic()  # some time is left for the other way
        if failed or left <= 0:
            return []
        argv = [str(program), "dump", "--json", "--pid", str(pid)]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=left, check=False)
            threads = _from_py_spy(pid, done.stdout) if done.returncode == 0 else []
        except (OSError, subprocess.TimeoutExpired):
            threads = []
        if not threads:  # not permitted, or not this version of Python: it is the same for the others
            failed.append(pid)
        return threads

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {pid: threads for pid, threads in zip(pids, pool.map(look, pids)) if threads}


def _from_py_spy(pid: int, answer: bytes) -> List[Thread]:
    try:
        given = json.loads(answer)
        threads = [
            {
                "name": thread.get("thread_name") or "thread %s" % thread.get("os_thread_id"),
                "main": thread.get("os_thread_id") == pid or thread.get("thread_name") == "MainThread",
                "frames": [[frame["name"], frame["filename"], frame["line"]] for frame in thread["frames"]][:_FRAMES],
            }
            for thread in given
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return _main_first(threads)


# -- asked to write them down ------------------------------------------------------------------------------------


class _Memory(NamedTuple):
    """The memory file that an armed process has open: forks share one."""

    path: str
    inode: int


def _memory_file(pid: int) -> Optional[_Memory]:
    """None where the process is not armed, has closed the file, or may not be looked into."""
    try:
        for name in os.listdir("/proc/%d/fd" % pid):
            if procfs.link(pid, "fd/" + name).startswith(arming.MEMORY_FILE):
                path = "/proc/%d/fd/%s" % (pid, name)
                return _Memory(path, os.stat(path).st_ino)
    except OSError:
        pass
    return None


class _Answer(NamedTuple):
    text: str
    why: Optional[str]


class _Question:
    """A process that is asked for its stacks. It writes them in the signal's handler, and says nothing at the end."""

    def __init__(self, pid: int, memory: _Memory) -> None:
        self._pid = pid
        self._signum = arming.SIGNAL or 0
        self._file = os.open(memory.path, os.O_RDONLY | os.O_CLOEXEC)
        self._begin = os.fstat(self._file).st_size
        self._deaf = {thread for thread in procfs.threads(pid) if self._has("SigBlk", thread)}
        self._deadline = time.monotonic() + _ANSWER_S
        os.kill(pid, self._signum)

    def answer(self) -> Optional[_Answer]:
        """None: not yet."""
        has_begun = os.fstat(self._file).st_size > self._begin
        if has_begun and not self._is_at_it():
            size = os.fstat(self._file).st_size  # once more: it may have written between the two looks
            return self._end(_Answer(os.pread(self._file, size - self._begin, self._begin).decode("utf-8"), None))
        state = procfs.stat(self._pid)
        if state is None or state.state in "ZX":
            return self._end(_Answer("", "it has just ended"))
        if time.monotonic() < self._deadline:
            return None
        return self._end(_Answer("", "did not answer within %.0f s (state %s)" % (_ANSWER_S, state.state)))

    def _is_at_it(self) -> bool:
        """The signal waits for a thread, or one has it blocked that had not: the kernel does so during the handler."""
        if any(self._has(name) for name in ("SigPnd", "ShdPnd")):
            return True
        return any(self._has("SigBlk", thread) for thread in procfs.threads(self._pid) if thread not in self._deaf)

    def _has(self, name: str, thread: Optional[int] = None) -> bool:
        return procfs.has(procfs.field(self._pid, name, thread), self._signum)

    def _end(self, answer: _Answer) -> _Answer:
        os.close(self._file)
        return answer


def _by_faulthandler(pids: Sequence[int], deadline: float) -> Dict[int, _Answer]:
    """All at once, but for those that write to the same file."""
    found: Dict[int, _Answer] = {}
    waiting: Dict[int, List[Tuple[int, _Memory]]] = {}
    for pid in pids:
        memory = _memory_file(pid)
        # Where nothing catches the signal, it would kill.
        if memory is None or not procfs.has(procfs.field(pid, "SigCgt"), arming.SIGNAL or 0):
            found[pid] = _Answer("", "not armed: started with -E, -I, -S or another PYTHONPATH, or just starting")
        else:
            waiting.setdefault(memory.inode, []).append((pid, memory))
    open_questions: Dict[int, Tuple[int, _Question]] = {}
    while waiting and time.monotonic() < deadline:
        for inode, queue in list(waiting.items()):
            if inode not in open_questions:
                pid, memory = queue.pop(0)
                try:
                    open_questions[inode] = pid, _Question(pid, memory)
                except OSError as error:
                    found[pid] = _Answer("", "cannot be asked: %s" % error.strerror)
            else:
                pid, question = open_questions[inode]
                answer = question.answer()
                if answer is not None:
                    found[pid] = answer
                    del open_questions[inode]
            if not queue and inode not in open_questions:
                del waiting[inode]
        time.sleep(0.001)
    late = [pid for queue in waiting.values() for pid, _ in queue] + [pid for pid, _ in open_questions.values()]
    found.update((pid, _Answer("", "there was no time left to ask it")) for pid in late)
    return found


def _parse(text: str) -> List[Thread]:
    """faulthandler's text. It lists the youngest thread first, the main thread last."""
    threads: List[Thread] = []
    for line in text.splitlines():
        head, frame = _HEAD.match(line), _FRAME.match(line)
        if head:
            threads.append({"name": head[2] or "thread 0x" + head[1].lstrip("0"), "main": False, "frames": []})
        elif frame and threads and len(threads[-1]["frames"]) < _FRAMES:
            threads[-1]["frames"].append([frame[3], frame[1], int(frame[2]) if frame[2].isdigit() else 0])
    if threads:
        threads[-1].update(name="MainThread", main=True)
    return _main_first(threads)


def _main_first(threads: List[Thread]) -> List[Thread]:
    return sorted(threads, key=lambda thread: not thread["main"])[:_THREADS]


# -- told in a few lines -----------------------------------------------------------------------------------------

_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/(python|pypy)[0-9.]+/|/python[0-9]+\.zip/|^<frozen |^$")
#: Functions that only pass a call on, as decorators and torch.nn.Module do: what they call says more.
_PASSES_ON = re.compile(r"_?wrapper(_.*|\d*)|_?wrapped(_.*)?|inner|_fn|decorate_context|_?call_impl|_wrapped_call_impl"
                        r"|__call__|<lambda>|_decorated|decorator|decorated")  # fmt: skip


def where(processes: Sequence[Process]) -> str:
    """Where a rank is, in words: what its own code has called, and the line that did. `in all_reduce at train.py:88`"""
    if not processes:
        return "without a process"
    first = next((process for process in processes if process["threads"]), processes[0])
    frames = first["threads"][0]["frames"] if first["threads"] else []
    if not frames:
        return first["why"] or "in no Python code"
    own = next((index for index, frame in enumerate(frames) if not _LIBRARY.search(frame[1])), None)
    if own is None:
        function, file, line = frames[0]
        return "in %s at %s:%d" % (_function(function, file), os.path.basename(file), line)
    function, file, line = frames[own]
    for inner, its_file, _ in reversed(frames[:own]):
        if not _PASSES_ON.fullmatch(inner.rpartition(".")[2]):
            function = _function(inner, its_file)
            break
    place = "at %s:%d" % (os.path.basename(file), line)
    return place if function == "<module>" else "in %s %s" % (function, place)


def _function(name: str, file: str) -> str:
    """`__next__` alone says nothing: `dataloader.__next__`."""
    bare = name.startswith("__") and "." not in name
    return "%s.%s" % (os.path.splitext(os.path.basename(file))[0], name) if bare else name


def group(by_rank: Mapping[int, Sequence[Process]]) -> List[str]:
    """`7 ranks in all_reduce at train.py:88 (ranks 0-5, 7)`: a line for each place, that of most ranks first."""
    places: Dict[str, List[int]] = {}
    for rank in sorted(by_rank):
        places.setdefault(where(by_rank[rank]), []).append(rank)
    lines = []
    for place, ranks in sorted(places.items(), key=lambda item: (-len(item[1]), item[1][0])):
        text = place if place.startswith(("in ", "at ", "without ")) else ": " + place
        who = "rank %d" % ranks[0] if len(ranks) == 1 else "%d ranks" % len(ranks)
        which = "" if len(ranks) == 1 else " (ranks %s)" % ranges(ranks)
        lines.append(who + (text if text[0] == ":" else " " + text) + which)
    return lines
