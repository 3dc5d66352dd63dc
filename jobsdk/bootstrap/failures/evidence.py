"""What a node measures of a death: the kernel's count of processes killed for want of memory, and disks that are full.

Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst (memory.events, memory.max) and cgroup-v1/memory.rst
(memory.oom_control, memory.max_usage_in_bytes); proc(5) for mountinfo and vmstat.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Dict, Iterable, List, Optional, Tuple

_FULL = 1 << 20  # bytes; a disk with less counts as full: a write fails before the last block is taken
_UNLIMITED = 1 << 60  # bytes; version 1 writes "no limit" as a number near 2**63
_SHM = "/dev/shm"


#: What the kernel counts for a memory cgroup: the processes of it that were killed, and how often its limit was why
#: (0 in version 1, which does not tell).
_Count = Tuple[int, int]


class Group:
    """The memory cgroup of a process and those around it, the innermost first, with their counts at that time."""

    __slots__ = ("counts", "folders")  # a NamedTuple would cost every start a quarter of a millisecond

    def __init__(self, folders: List[str], counts: Dict[str, _Count]) -> None:
        self.folders = folders
        self.counts = counts


def cgroup_of(pid: int) -> Optional[Group]:
    """Read it while the process lives. None where there are no memory cgroups, or no such process."""
    for version, mount in _mounts():
        path = _path_of(pid, version)
        if path is None:
            continue
        folder = _folder(mount, path)
        folders: List[str] = []
        while folder.startswith(mount[0]) and len(folders) < 32:
            folders.append(folder)
            if folder == mount[0]:
                break
            folder = os.path.dirname(folder)
        counts = {folder: count for folder in folders for count in [_count(folder)] if count is not None}
        if counts:
            return Group(folders, counts)
    return None


class Watch:
    """Make it before the ranks start. `paths`: where they write; /dev/shm is looked at too."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = list(dict.fromkeys([*paths, _SHM]))
        self._kernel = _kernel_kills()

    def of(self, group: Optional[Group], exit_code: int, signum: Optional[int]) -> Dict[str, Any]:
        """The evidence for a process of that cgroup that has just ended; {} if there is none.

        `oom`: {source, limit in bytes or None, kills}; `disk`: {path, free and size in bytes} of a disk that is full,
        or of /dev/shm after a SIGBUS, as who died of a want of it has given it back.
        """
        if not exit_code:
            return {}
        killed = signal.SIGKILL in (signum, exit_code - 128)
        evidence: Dict[str, Any] = {}
        oom = self._memory(group, killed)
        if oom is not None:
            evidence["oom"] = oom
        disk = self._disk(signal.SIGBUS in (signum, exit_code - 128))
        if disk is not None:
            evidence["disk"] = disk
        return evidence

    def _memory(self, group: Optional[Group], killed: bool) -> Optional[Dict[str, Any]]:
        known = False
        if group is not None:
            now = {folder: count for folder in group.counts for count in [_count(folder)] if count is not None}
            known = group.folders[0] in now
            grown = {folder: count[0] - group.counts[folder][0] for folder, count in now.items()}
            kills = max([0, *grown.values()])
            if kills:
                hit = [one for one in now if now[one][1] > group.counts[one][1] or _was_full(one)]
                limits = [limit for limit in map(limit_of, hit) if limit is not None]
                source = "cgroup" if limits else "kernel"  # the whole machine's memory was used up
                return {"source": source, "limit": min(limits) if limits else None, "kills": kills}
        # Of the whole machine: of use only where no cgroup tells of this process.
        kills = _kernel_kills() - self._kernel
        if killed and not known and kills > 0:
            return {"source": "kernel", "limit": None, "kills": kills}
        return None

    def _disk(self, bus_error: bool) -> Optional[Dict[str, Any]]:
        for path in [_SHM] if bus_error else self._paths:
            try:
                stat = os.statvfs(path)
            except OSError:
                continue
            size, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
            full = size > 0 and free < min(_FULL, size // 20)
            if full or bus_error or (stat.f_files and not stat.f_favail):
                return {"path": path, "free": free, "size": size}
        return None


# -- cgroups ---------------------------------------------------------------------------------------------------------


_Mount = Tuple[str, str]  # where it is, and the cgroup that is to be seen there: in a container its own

_found: Optional[List[Tuple[int, _Mount]]] = None


def _mounts() -> List[Tuple[int, _Mount]]:
    """(version, mount) of the file systems that tell of memory cgroups."""
    global _found
    if _found is None:
        _found = []
        for line in _read("/proc/self/mountinfo").splitlines():
            words, _, rest = line.partition(" - ")
            fields, kind = words.split(), rest.split()
            version = {"cgroup": 1, "cgroup2": 2}.get(kind[0] if kind else "")
            if len(fields) > 4 and (version == 2 or (version == 1 and "memory" in kind[-1].split(","))):
                _found.append((version, (fields[4], fields[3])))
        _found.sort(key=lambda one: one[0])  # where both are mounted, version 1 has the memory
    return _found


def _path_of(pid: int, version: int) -> Optional[str]:
    for line in _read("/proc/%d/cgroup" % pid).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" if version == 2 else "memory" in controllers.split(","):
            return path
    return None


def _folder(mount: _Mount, path: str) -> str:
    point, root = mount
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    folder = os.path.normpath(point + "/" + path.lstrip("/"))
    return folder if os.path.isdir(folder) else point


def _count(folder: str) -> Optional[_Count]:
    if os.path.exists(folder + "/memory.events"):
        events = _table(folder + "/memory.events")
        return (events["oom_kill"], events.get("oom", 0)) if "oom_kill" in events else None
    control = _table(folder + "/memory.oom_control")
    if "oom_kill" not in control:  # before Linux 4.13
        return None
    return control["oom_kill"], 0


def limit_of(folder: str) -> Optional[int]:
    """The memory limit of a cgroup's folder (version 2 or 1), in bytes; None without one."""
    limit = _number(folder + "/memory.max") or _number(folder + "/memory.limit_in_bytes")
    return limit if limit is not None and limit < _UNLIMITED else None


def _was_full(folder: str) -> bool:
    """Whether a cgroup of version 1 has used all that it may. (Its failcnt does not count every time.)"""
    limit, most = limit_of(folder), _number(folder + "/memory.max_usage_in_bytes")
    return limit is not None and most is not None and most > 0.98 * limit


def _number(path: str) -> Optional[int]:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _kernel_kills() -> int:
    """Processes of this machine that were killed for want of memory since it started (since Linux 4.13)."""
    return _table("/proc/vmstat").get("oom_kill", 0)


def _table(path: str) -> Dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _read(path: str) -> str:
    """Through plain system calls: it is done for every rank that is started."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    parts: List[bytes] = []
    try:
        while not parts or parts[-1]:
            parts.append(os.read(file, 1 << 16))
    except OSError:
        pass  # the process or the cgroup has gone
    finally:
        os.close(file)
    return b"".join(parts).decode("utf-8", "replace")
