"""Starting a command, and ending it with all that it has started, on Linux; on macOS what the system allows."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from . import private, procfs

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def become_subreaper() -> bool:
    """Make orphaned grandchildren ours, also those that called setsid, so that none can outlive the job."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def shell_argv(command: str) -> List[str]:
    """How the user's own command text is run: by bash as on Azure ML, by sh where an image has no bash."""
    for shell in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"):
        if os.path.exists(shell):
            return [shell, "-c", command]
    return ["/bin/sh", "-c", command]


def start(argv: Sequence[str], environment: Mapping[str, str], log: str, program: Optional[str] = None) -> int:
    """Start `argv` in a session of its own; returns its pid. Its first word, or `program`, is an absolute path.

    stdout and stderr go straight to the file `log`, so that a slow reader never holds the process up.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    os.close(private.open_file(log, flags))  # the new process would make it with the user's umask
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return _spawn(program or argv[0], argv, environment, actions)


def start_piped(argv: Sequence[str], environment: Mapping[str, str], files: Sequence[int]) -> int:
    """The same with three open files of ours as stdin, stdout and stderr; each must be above 2."""
    actions = [(os.POSIX_SPAWN_DUP2, file, number) for number, file in enumerate(files)]
    return _spawn(argv[0], argv, environment, actions)


def _spawn(program: str, argv: Sequence[str], environment: Mapping[str, str], actions: Sequence[Any]) -> int:
    """posix_spawn rather than subprocess: no fork of a large parent, and 10 ms less to import."""
    # Ignored signals are inherited: Python ignores two, nohup and a shell's `&` others. A command finds the defaults.
    names = ("SIGPIPE", "SIGXFSZ", "SIGINT", "SIGQUIT", "SIGHUP")
    defaults = [getattr(signal, name) for name in names if hasattr(signal, name)]
    options: Dict[str, Any] = {"file_actions": actions, "setsigdef": defaults, "setsigmask": ()}
    words = list(argv)
    with private.users_umask():
        try:
            # A session, not only a group: Linux shares the processor between sessions first (autogroup), so that the
            # ranks of a job in one session would together get no more than one process of anybody else's.
            return os.posix_spawn(program, words, environment, setsid=True, **options)
        except NotImplementedError:  # macOS before 10.15 and old C libraries
            return os.posix_spawn(program, words, environment, setpgroup=0, **options)


def exit_code(status: int) -> Tuple[int, Optional[int]]:
    """(exit code, signal or None) of a wait status; a signal n counts as 128 + n, as in a shell."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def reap() -> Dict[int, int]:
    """Collect every child that has ended, adopted ones too: pid -> wait status. Never blocks."""
    ended: Dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def start_time(pid: int) -> Optional[int]:
    """When a living process started, in clock ticks since boot; None if there is none (a zombie counts as none)."""
    if not os.path.isdir("/proc/self"):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return 0  # macOS: known to live, but not since when
    stat = procfs.stat(pid)
    return None if stat is None or stat.is_zombie else stat.started


def parent(pid: int) -> Optional[int]:
    """The parent of a process; None if there is no such process."""
    stat = procfs.stat(pid)
    return None if stat is None else stat.parent


def _pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc/self") else []


def _parents() -> Dict[int, Tuple[int, bool]]:
    """pid -> (parent pid, whether it is a zombie) of every process."""
    if not os.path.isdir("/proc/self"):
        return _parents_by_ps()
    stats = {pid: procfs.stat(pid) for pid in _pids()}
    return {pid: (stat.parent, stat.is_zombie) for pid, stat in stats.items() if stat is not None}


def _parents_by_ps() -> Dict[int, Tuple[int, bool]]:
    import subprocess

    listing = subprocess.run(["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=False).stdout
    rows = [line.split() for line in listing.splitlines()]
    return {int(row[0]): (int(row[1]), row[2].startswith("Z")) for row in rows if len(row) == 3}


def descendants(root: int) -> List[int]:
    """Every living process below `root`, parents before children."""
    return _below([root])


def _below(roots: Iterable[int]) -> List[int]:
    # A parent may die while we look: its child is found through the zombie.
    children: Dict[int, List[int]] = {}
    parents = _parents()
    for pid, (parent, _) in parents.items():
        children.setdefault(parent, []).append(pid)
    found: List[int] = []
    queue = list(roots)
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return [pid for pid in found if not parents[pid][1]]


def send(pids: Sequence[int], signum: int) -> None:
    """Signal each process; one that has gone meanwhile is passed over. With SIGTERM one that is stopped goes on."""
    for pid in pids:
        try:
            os.kill(pid, signum)
            if signum == signal.SIGTERM:  # it would hear of it only then (systemd.kill(5) does the same)
                os.kill(pid, signal.SIGCONT)
        except (ProcessLookupError, PermissionError):
            pass


def kill_descendants() -> None:
    """SIGKILL all below this process, their subreaper, until none is left; what cannot die is left after 5 s."""
    deadline, looks = time.monotonic() + 5.0, 0
    while looks < 1000 or time.monotonic() < deadline:  # this process may have stood still for most of that time
        looks += 1
        strike()
        reap()
        if not _has_children() and (os.path.isdir("/proc/self") or not descendants(os.getpid())):
            return
        time.sleep(0.001)


def _has_children() -> bool:
    """Whether this process has any, zombies among them. Unlike a look at /proc it misses none that change parents."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def strike(ours: Callable[[List[int]], List[int]] = list) -> None:
    """SIGKILL the children of this process; for a subreaper, those of a child that dies are its own children next.

    `ours` leaves out processes that are to stay. Quick enough for processes that go on in a new one every few
    milliseconds, which a look at all processes misses.
    """
    send(ours(_children()), signal.SIGKILL)


def _children() -> List[int]:
    """The living children of this process."""
    found: List[int] = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/children" % task) as file:
                found += map(int, file.read().split())
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN, or another system
        return descendants(os.getpid())
    return [pid for pid in found if start_time(pid) is not None]


def kill_run(run_dir: str) -> int:
    """SIGKILL every process of this user that belongs to the run in `run_dir`, wherever it hangs in the tree.

    They are known by JOBSDK_RUN_DIR in the environment that they were started with, or as ranks by the run's events;
    what they have started goes with them. Returns how many there were.

    All are stopped before any is killed: none can start another one meanwhile that, with its parent gone and an
    environment of its own, nobody could tell to be of the run.
    """
    marker = b"JOBSDK_RUN_DIR=" + os.fsencode(run_dir)
    stopped: Set[int] = set()
    here: List[int] = []
    for _ in range(100):
        known = _started_ranks(run_dir)
        # The newest first: among them are those that go on in a new process every few milliseconds.
        for pid in sorted(_pids(), reverse=True):
            if pid != os.getpid() and marker in _environ(pid):
                known.append(pid)
                if pid not in stopped:
                    send([pid], signal.SIGSTOP)
        # Children before parents: the kernel wakes stopped ones of whom a parent's death makes orphans (setpgid(2)).
        here = [pid for pid in dict.fromkeys(reversed(known + _below(known))) if pid != os.getpid()]
        if not here:
            return len(stopped)
        new = set(here) - stopped
        send(list(new), signal.SIGSTOP)
        if not new:
            send(here, signal.SIGKILL)
        stopped |= new
    send(here, signal.SIGKILL)
    return len(stopped)


def _started_ranks(run_dir: str) -> List[int]:
    """The pids of ranks that the run's events name and that still are the same processes."""
    found = []
    try:
        with open(run_dir + "/events.jsonl") as file, open("/proc/stat") as system:
            booted = next(int(line.split()[1]) for line in system if line.startswith("btime"))
            for event in map(json.loads, file):
                ticks = start_time(event["pid"]) if event["event"] == "rank_started" else None
                # A later process with the same pid has another start; btime counts whole seconds.
                if ticks is not None and abs(booted + ticks / os.sysconf("SC_CLK_TCK") - event["t"]) < 2.0:
                    found.append(event["pid"])
    except (OSError, ValueError, StopIteration):
        pass  # no such run, a line cut short, or a system without /proc
    return found


def _environ(pid: int) -> List[bytes]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def cores() -> int:
    """How many cores this process may use: its affinity, and the quota of its cgroup (v1 or v2), at least 1."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:
        count = os.cpu_count() or 1
    for quota_file, period_file in (
        ("/sys/fs/cgroup/cpu.max", None),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
    ):
        try:
            with open(quota_file) as file:
                fields = file.read().split()
            if period_file:
                with open(period_file) as file:
                    fields.append(file.read().strip())
            if fields[0] not in ("max", "-1"):
                count = min(count, max(1, int(fields[0]) // int(fields[1])))
            break
        except (OSError, ValueError, IndexError):
            continue
    return max(1, count)


def visible_gpus(environment: Mapping[str, str]) -> Optional[List[str]]:
    """The ids of the GPUs that a process here would see, as strings (they may be UUIDs or MIG names).

    The inherited CUDA_VISIBLE_DEVICES counts; without it, as many numbers as the NVIDIA driver lists. None: no GPU
    driver, so nothing is known.
    """
    mask = environment.get("CUDA_VISIBLE_DEVICES")
    if mask is not None:
        return [part.strip() for part in mask.split(",") if part.strip() not in ("", "-1")]
    try:
        return [str(index) for index in range(len(os.listdir("/proc/driver/nvidia/gpus")))]
    except OSError:
        return None
