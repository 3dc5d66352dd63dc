"""Starting a command, and ending it with all that it has started, on Linux; on macOS what the system allows."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

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
    posix_spawn rather than subprocess: no fork of a large parent, and 10 ms less to import.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    # Ignored signals are inherited: Python ignores two, nohup and a shell's `&` others. A command finds the defaults.
    names = ("SIGPIPE", "SIGXFSZ", "SIGINT", "SIGQUIT", "SIGHUP")
    defaults = [getattr(signal, name) for name in names if hasattr(signal, name)]
    options: Dict[str, Any] = {"file_actions": actions, "setsigdef": defaults, "setsigmask": ()}
    words = list(argv)
    try:
        # A session, not only a group: Linux shares the processor between sessions first (autogroup), so that the
        # ranks of a job in one session would together get no more than one process of anybody else's.
        return os.posix_spawn(program or argv[0], words, environment, setsid=True, **options)
    except NotImplementedError:  # macOS before 10.15 and old C libraries
        return os.posix_spawn(program or argv[0], words, environment, setpgroup=0, **options)


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


class _Stat(NamedTuple):
    parent: int
    zombie: bool
    started: int  # clock ticks since boot: tells a process from a later one with the same pid


def _stat(pid: int) -> Optional[_Stat]:
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            # The name in parentheses may hold anything, so the fields count from the last ")".
            fields = file.read().rpartition(b")")[2].split()
        return _Stat(int(fields[1]), fields[0] in (b"Z", b"X"), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


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
    stat = _stat(pid)
    return None if stat is None or stat.zombie else stat.started


def parent(pid: int) -> Optional[int]:
    """The parent of a process; None if there is no such process."""
    stat = _stat(pid)
    return None if stat is None else stat.parent


def _parents() -> Dict[int, int]:
    """pid -> parent pid of every living process."""
    if not os.path.isdir("/proc/self"):
        return _parents_by_ps()
    stats = {int(name): _stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: stat.parent for pid, stat in stats.items() if stat is not None and not stat.zombie}


def _parents_by_ps() -> Dict[int, int]:
    import subprocess

    listing = subprocess.run(["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=False).stdout
    rows = [line.split() for line in listing.splitlines()]
    return {int(row[0]): int(row[1]) for row in rows if len(row) == 3 and not row[2].startswith("Z")}


def descendants(root: int) -> List[int]:
    """Every living process below `root`, parents before children."""
    children: Dict[int, List[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: List[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def send(pids: Sequence[int], signum: int) -> None:
    """Signal each process; one that has gone meanwhile is passed over."""
    for pid in pids:
        try:
            os.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            pass


def kill_descendants(root: int) -> None:
    """SIGKILL all below `root` until none is left: they may go on to fork while they are being killed."""
    for _ in range(100):
        found = descendants(root)
        reap()
        if not found:
            return
        send(found, signal.SIGKILL)


def kill_run(run_dir: str) -> int:
    """SIGKILL every process of this user that belongs to the run in `run_dir`, wherever it hangs in the tree.

    They are known by JOBSDK_RUN_DIR in the environment that they were started with, or as ranks by the run's events;
    what they have started goes with them. Returns how many there were.
    """
    marker, total = b"JOBSDK_RUN_DIR=" + os.fsencode(run_dir), 0
    for _ in range(100):
        known = [pid for pid in _parents() if marker in _environ(pid)] + _started_ranks(run_dir)
        found = {pid for root in known for pid in (root, *descendants(root))} - {os.getpid()}
        if not found:
            break
        total += len(found)
        send(list(found), signal.SIGKILL)
    return total


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
