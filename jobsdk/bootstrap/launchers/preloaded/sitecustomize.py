"""Runs while Python starts: imports modules once, and forks a process for each rank of the node, in each attempt.

The bootstrap starts `python train.py ...` with this folder on PYTHONPATH, and Python imports `sitecustomize` before it
does anything else. In the forked ranks this module simply returns, and Python goes on to what its command line says.
So sys.argv, `__main__`, sys.path[0], tracebacks, exit codes and atexit are Python's own doing, as in a fresh process.
The process that imported never gets so far: it forks the ranks of the next attempt when the bootstrap orders them.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Dict, List, Optional, Set, TypedDict

_FILES = "JOBSDK_PRELOAD"  # "REQUEST ORDERS ANSWER": three open files, by number
_STACKS = "jobsdk-stacks"  # what armed/sitecustomize.py opens


class _Rank(TypedDict):
    environment: Dict[str, str]
    log: str


class _Request(TypedDict):
    """What the bootstrap wants for one attempt; texts have one character for each byte."""

    environment: Dict[str, str]
    modules: List[str]
    folder: str
    python_path: Optional[str]
    withheld: List[str]
    stays: bool
    ranks: List[_Rank]


class _Unsafe(Exception):
    """Why no ranks are forked."""


class _Imports:
    """What the imports did, and what they depend on."""

    def __init__(self, request: _Request) -> None:
        self.began = _as_bytes(request["environment"])
        self.read = _import_all(request["modules"], request["folder"], set(request["withheld"]))
        self.changed = {name: value for name, value in os.environb.items() if self.began.get(name) != value}
        self.removed = [name for name in self.began if name not in os.environb]
        self.sources = _sources()

    def check(self, request: _Request) -> None:
        """Raises _Unsafe where they would have a different effect in the next attempt."""
        now, withheld = _as_bytes(request["environment"]), set(request["withheld"])
        for name in sorted(self.read):
            key = os.fsencode(name)
            if name in withheld or now.get(key) != self.began.get(key):
                raise _Unsafe("%s has changed, and the imports read it" % name)
        for path, stamp in self.sources.items():
            if _stamp(path) != stamp:
                raise _Unsafe("%s has changed" % path)


def _main() -> bool:
    """Returns in the ranks alone: whether there is a `sitecustomize` of somebody else's."""
    request_file, orders, answer = map(int, os.environ.pop(_FILES).split())
    import gc
    import json

    here, leave = os.getpid(), os._exit
    try:
        request = _request(request_file)
        opened = set(_open_files())
        other = _leave_no_trace(request["python_path"])
        imports = _Imports(request)
        _check_shared(opened)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and hasattr(stream, "flush"):
                stream.flush()
        gc.freeze()  # what is shared is then not written to by a collection, and stays shared
        while not _fork_ranks(request["ranks"], answer, imports):
            if not request["stays"] or not os.read(orders, 1):
                leave(0)
            request = _request(request_file)
            imports.check(request)
        for number in (request_file, orders, answer):
            os.close(number)
        return other
    except BaseException as error:  # Python would go on, and run the script in this very process
        try:
            if os.getpid() == here:
                why = str(error) if isinstance(error, _Unsafe) else "%s: %s" % (type(error).__name__, error)
                os.write(answer, json.dumps({"refused": why}).encode() + b"\n")
            else:
                os.write(2, ("preload: %s: %s\n" % (type(error).__name__, error)).encode())
        finally:
            leave(1)


def _request(file: int) -> _Request:
    """What the bootstrap wants now; it writes the next request into the same file."""
    import json

    request: _Request = json.loads(os.pread(file, os.fstat(file).st_size, 0).decode())
    return request


def _fork_ranks(ranks: List[_Rank], answer: int, imports: _Imports) -> bool:
    """Whether this process is a rank now.

    A process between this one and the ranks forks them, tells the bootstrap, and ends: the ranks become the bootstrap's
    own children. They go on only then.
    """
    between = os.fork()
    if between:
        _, status = os.waitpid(between, 0)
        if status:
            os._exit(1)
        return False
    import json

    forker = os.getpid()
    ready, go = os.pipe()
    pids = []
    for rank in ranks:
        pid = os.fork()
        if pid == 0:
            os.close(go)
            _become(rank, imports.changed, imports.removed)
            _wait_for_word(ready, forker)
            _arm_anew()
            return True
        pids.append(pid)
    os.write(answer, json.dumps({"pids": pids}).encode() + b"\n")
    os.write(go, b"." * len(pids))
    os._exit(0)


def _leave_no_trace(python_path: Any) -> bool:
    """Undo how this module came to be imported. Whether there is another `sitecustomize`, which then has its turn."""
    import importlib

    folder = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    sys.path_importer_cache.pop(folder, None)
    if python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = python_path
    del sys.modules[__name__]
    try:
        importlib.import_module(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
        return False
    return True


def _import_all(modules: List[str], folder: str, withheld: Set[str]) -> Set[str]:
    """Import `modules`; returns the variables that they asked for by name."""
    import importlib

    read = set()  # type: Set[str]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)  # where Python will look first for the script's own modules
    for name in modules:
        watch = _Watch()
        try:
            importlib.import_module(name)
        except BaseException as error:
            raise _Unsafe("cannot import %s: %s: %s" % (name, type(error).__name__, error)) from None
        finally:
            watch.end()
        if watch.seen & withheld:
            text = "%s reads %s while it is imported, which differs from rank to rank"
            raise _Unsafe(text % (name, ", ".join(sorted(watch.seen & withheld))))
        read |= watch.seen
        _check_gpu(name)
        _check_threads(name)
    if folder in sys.path:
        sys.path.remove(folder)
    return read


def _sources() -> Dict[str, Any]:
    """The state of each imported file that is not an installed package's: what a user may edit during a run."""
    found = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and "-packages/" not in path and not path.startswith(os.path.dirname(os.__file__)):
            found[path] = _stamp(path)
    return found


def _stamp(path: str) -> Any:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino


class _Watch:
    """Notes which variables are read from os.environ by name, until `end()`. A walk over all of them does not count."""

    def __init__(self) -> None:
        self.seen = seen = set()  # type: Set[str]
        self._kind = os.environ.__class__
        walks = []  # type: List[None]

        class Watched(os.environ.__class__):  # type: ignore[misc, name-defined]
            def __getitem__(self, key: Any) -> Any:  # `get` and `in` come here too
                if not walks and isinstance(key, str):
                    seen.add(key)
                return super().__getitem__(key)

            def __iter__(self) -> Any:
                walks.append(None)
                try:
                    yield from super().__iter__()
                finally:
                    walks.pop()

        os.environ.__class__ = Watched

    def end(self) -> None:
        os.environ.__class__ = self._kind


def _check_gpu(name: str) -> None:
    """A process that has talked to the GPU driver cannot be forked into ones that can."""
    torch = sys.modules.get("torch")
    initialised = torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized()
    if initialised or any(link.startswith(("/dev/nvidia", "/dev/kfd")) for link in _open_files()):
        raise _Unsafe("%s initializes the GPU while it is imported" % name)


def _open_files() -> List[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink("/proc/self/fd/" + number))
        except OSError:
            pass  # the listing's own
    return found


def _check_threads(name: str) -> None:
    """Only the thread that forks goes on in a fork, so that locks of others stay locked forever."""
    import threading

    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if not names and len(os.listdir("/proc/self/task")) > 1:
        # Thread pools that know of fork (OpenBLAS, OpenMP) end their threads before one, and start them anew later.
        _fork_once()
        names = _native_threads()
    if names:
        raise _Unsafe("%s leaves threads running: %s" % (name, ", ".join(names)))


def _fork_once() -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _native_threads() -> List[str]:
    names = []
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            with open("/proc/self/task/%s/comm" % task) as file:
                names.append(file.read().strip())
    return names


def _check_shared(opened: Set[str]) -> None:
    """What forks would share, where fresh processes have their own: file positions, event loops, memory, helpers."""
    ours = ("/dev/", "/memfd:" + _STACKS)
    links = [link for link in _open_files() if link not in opened and not link.startswith(ours)]
    with open("/proc/self/maps") as maps:
        rows = [line.split(None, 5) for line in maps]
    links += [row[5].strip() for row in rows if row[1][1] == "w" and row[1][3] == "s" and len(row) > 5]
    if links:
        raise _Unsafe("an import leaves open what the ranks would share: " + ", ".join(sorted(set(links))[:3]))
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return
    raise _Unsafe("an import leaves a process running")


def _as_bytes(environment: Dict[str, str]) -> Dict[bytes, bytes]:
    """What the bootstrap sends as text of one character for each byte: this Python may have another encoding."""
    return {name.encode("latin-1"): value.encode("latin-1") for name, value in environment.items()}


def _become(rank: _Rank, changed: Dict[bytes, bytes], removed: List[bytes]) -> None:
    """In the fork: be one rank, as if it had been started so and had then imported the modules."""
    os.setsid()
    rights = os.stat(os.path.dirname(rank["log"])).st_mode
    log = os.open(rank["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644 & rights)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environb.clear()
    os.environb.update(_as_bytes(rank["environment"]))
    os.environb.update(changed)  # what the imports have set
    for name in removed:
        os.environb.pop(name, None)
    # What a fresh process would draw from the system's randomness for itself.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if hasattr(sys.modules.get("torch"), "default_generator"):
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def _arm_anew() -> None:
    """The memory file for this process' stacks is its own, not one that all forks share."""
    import faulthandler
    import signal

    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if os.readlink("/proc/self/fd/%d" % number).startswith("/memfd:" + _STACKS):
                os.close(number)
                faulthandler.register(signal.SIGRTMAX - 2, file=os.memfd_create(_STACKS), all_threads=True)
        except OSError:
            pass  # the listing's own


def _wait_for_word(ready: int, forker: int) -> None:
    """Until the bootstrap knows of all ranks, and is the parent of this one: a script may watch its parent."""
    if os.read(ready, 1) != b".":  # the one that forks was killed half-way
        os._exit(1)
    os.close(ready)
    while os.getppid() == forker:
        time.sleep(0.0005)


if _FILES in os.environ and not _main():
    raise ImportError("there is none", name=__name__)  # what Python finds where there is no sitecustomize
