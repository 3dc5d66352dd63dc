"""What one machine is like, as far as a job over several machines depends on it.

Everything is read and nothing changed. What cannot be read is None, or left out: nothing here raises.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from ..failures import evidence
from ..system import files, network, processes
from ..system import infiniband as fabric

if TYPE_CHECKING:
    from ..spec.preflight_messages import ProbedNode

Facts = Dict[str, Any]

#: Packages whose versions must be the same on all nodes; NCCL's is the one that torch from PyPI uses.
_PACKAGE = re.compile(r"(torch|tensorflow|jax|deepspeed|mpi4py|nvidia_nccl_cu\d+)-([^-]+)\.dist-info", re.IGNORECASE)
_TELL_PYTHON = (
    "import sys; print('\\0'.join(['', '%d.%d.%d' % sys.version_info[:3], sys.executable,"
    " str(int(sys.prefix != sys.base_prefix)), *sys.path]))"
)
_SIOCGIFMTU, _SIOCETHTOOL = 0x8921, 0x8946  # linux/sockios.h
_ETHTOOL_GSET = 1  # linux/ethtool.h
_TIME_ERROR = 5  # linux/timex.h: what adjtimex answers while the clock is not synchronised


def facts(python: str, folders: Sequence[str]) -> Facts:
    """The facts of this machine. `python` is the interpreter whose packages count; the disks are those of `folders`."""
    return dict(
        python_facts(python) or {"python": None},
        host=socket.gethostname(),
        machine=files.text("/proc/sys/kernel/random/boot_id") or None,
        driver=driver(),
        gpus=gpus(),
        visible_gpus=processes.visible_gpus(os.environ),
        interfaces=interfaces(),
        infiniband=infiniband(),
        limits=limits(),
        cores=processes.cores(),
        memory_limit=memory_limit(),
        memory=memory(),
        shm=space("/dev/shm"),
        disks=[disk for disk in (space(folder) for folder in dict.fromkeys(folders)) if disk is not None],
        clock_synchronised=clock_synchronised(),
    )


# -- Python and its packages -------------------------------------------------------------------------------------


def python_facts(python: str) -> Optional[Facts]:
    """Version, executable and packages of an interpreter; None where it does not start within 10 s."""
    if python == sys.executable and not sys.flags.no_site:
        version, in_venv = "%d.%d.%d" % sys.version_info[:3], sys.prefix != sys.base_prefix
        return {"python": version, "executable": python, "venv": in_venv, "packages": packages(sys.path)}
    import subprocess  # 10 ms

    try:
        words = subprocess.run([python, "-c", _TELL_PYTHON], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               stdin=subprocess.DEVNULL, timeout=10.0, check=True).stdout  # fmt: skip
        # A sitecustomize may have written something before.
        _, version, executable, venv, *paths = words.decode(errors="replace").rstrip("\n").split("\0")
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return {"python": version, "executable": executable, "venv": venv == "1", "packages": packages(paths)}


def packages(paths: Sequence[str]) -> Dict[str, str]:
    """Package -> version, by what is on sys.path; nothing is imported. `cuda` is what torch was built for."""
    found: Dict[str, str] = {}
    for folder in dict.fromkeys(paths):
        for name in files.listing(folder or "."):
            match = _PACKAGE.fullmatch(name)
            if match is not None:
                found.setdefault("nccl" if "nccl" in match[1] else match[1].lower(), match[2])
        text = files.text(os.path.join(folder, "torch", "version.py")) if "cuda" not in found else ""
        if text:
            version = re.search(r"^__version__\s*=\s*'([^']+)'", text, re.MULTILINE)
            cuda = re.search(r"^cuda\b.*=\s*(?:'([^']+)'|None)", text, re.MULTILINE)
            if version is not None:
                found["torch"] = version[1]
            found["cuda"] = (cuda and cuda[1]) or "none"
    if "nccl" not in found:
        for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"):
            for name in files.listing(folder):
                if name.startswith("libnccl.so.") and name.count(".") >= 4:
                    found["nccl"] = name[len("libnccl.so.") :]
    return found


# -- GPUs and networks -------------------------------------------------------------------------------------------


def driver() -> Optional[str]:
    """The version of NVIDIA's kernel driver."""
    match = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", files.text("/proc/driver/nvidia/version"))
    return match[0] if match else None


def gpus() -> List[Facts]:
    """The GPUs that NVIDIA's driver shows, by their place on the bus, with their models."""
    found = []
    for bus in files.listing("/proc/driver/nvidia/gpus"):
        text = files.text("/proc/driver/nvidia/gpus/%s/information" % bus)
        model = re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE)
        found.append({"bus": bus, "model": model[1] if model else None})
    return found


def interfaces() -> List[Facts]:
    """Every network interface that has an address: name, addresses, MTU (bytes), speed (Mbit/s, None: unknown)."""
    found: Dict[str, Facts] = {}
    for name, address in network.interface_addresses():
        if name not in found:
            found[name] = {"name": name, "addresses": [], "mtu": _mtu(name), "speed": _speed(name)}
        found[name]["addresses"].append(address)
    return list(found.values())


def _mtu(interface: str) -> Optional[int]:
    """Asked of the kernel: /sys may be that of another network namespace."""
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFMTU, struct.pack("256s", interface.encode()[:15]))
        return int(struct.unpack_from("i", answer, 16)[0])
    except (ImportError, OSError):
        return None


def _speed(interface: str) -> Optional[int]:
    """The negotiated speed in Mbit/s; None where the device does not tell. Asked of the kernel for the same reason."""
    try:
        import array
        import fcntl

        room = array.array("B", struct.pack("I40x", _ETHTOOL_GSET))  # struct ethtool_cmd
        request = struct.pack("16sP", interface.encode()[:15], room.buffer_info()[0])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            fcntl.ioctl(probe.fileno(), _SIOCETHTOOL, request)
        low, high = struct.unpack_from("H", room, 12)[0], struct.unpack_from("H", room, 28)[0]
    except (ImportError, OSError):
        return None
    speed = int(low | high << 16)
    return None if speed in (0, 0xFFFF, 0xFFFFFFFF) else speed


def infiniband() -> List[Facts]:
    """Every port of every InfiniBand or RoCE device: device, port, state (ACTIVE, DOWN, ...), rate, link layer."""
    return [
        {"device": port.device, "port": port.number, "state": port.state, "link_layer": port.layer,
         "rate": "%g Gb/sec" % port.rate if port.rate else None}
        for port in fabric.ports()
    ]  # fmt: skip


# -- limits and space --------------------------------------------------------------------------------------------


def limits() -> Dict[str, Optional[int]]:
    """The soft limits of open files, locked memory (bytes) and processes; None: no limit, left out: unknown."""
    try:
        import resource
    except ImportError:
        return {}
    found: Dict[str, Optional[int]] = {}
    for name in ("nofile", "memlock", "nproc"):
        number = getattr(resource, "RLIMIT_" + name.upper(), None)
        if number is not None:
            soft = resource.getrlimit(number)[0]
            found[name] = None if soft == resource.RLIM_INFINITY else soft
    return found


def memory() -> Optional[int]:
    """The machine's memory in bytes."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", files.text("/proc/meminfo"), re.MULTILINE)
    return int(match[1]) << 10 if match else None


def memory_limit() -> Optional[int]:
    """The least limit of memory of the cgroups (v2 or v1) that this process is in, in bytes; None: there is none."""
    group = evidence.cgroup_of(os.getpid())
    folders = group.folders if group is not None else []
    return min((limit for limit in map(evidence.limit_of, folders) if limit is not None), default=None)


def space(folder: str) -> Optional[Facts]:
    """Path, size and free bytes of the file system at `folder`, or at the nearest existing folder above."""
    while folder and not os.path.isdir(folder):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    try:
        state = os.statvfs(folder)
    except OSError:
        return None
    unit = state.f_frsize
    return {"path": folder, "size": state.f_blocks * unit, "free": state.f_bavail * unit}


def clock_synchronised() -> Optional[bool]:
    """Whether the kernel's clock follows a time server; None: unknown."""
    try:
        import ctypes

        answer = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # zeros: changes nothing
    except (ImportError, OSError, AttributeError):
        return None
    return None if answer < 0 else answer != _TIME_ERROR


# -- names -------------------------------------------------------------------------------------------------------


def resolve(name: str) -> Tuple[List[str], Optional[str]]:
    """(addresses of a name, None), or ([], why there are none). May take as long as the name servers do."""
    try:
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}), None
    except (OSError, UnicodeError) as error:
        return [], getattr(error, "strerror", None) or str(error)


def taken_by(port: int, error: OSError) -> str:
    """Why a port cannot be bound, with the process that listens on it where that can be seen."""
    if error.errno != errno.EADDRINUSE:
        return error.strerror or str(error)
    sockets = set()
    for table in ("tcp", "tcp6"):
        for line in files.text("/proc/self/net/" + table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: it listens
                sockets.add("socket:[%s]" % fields[9])
    for pid in filter(str.isdigit, os.listdir("/proc")) if os.path.isdir("/proc/self") else ():
        try:
            for number in os.listdir("/proc/%s/fd" % pid):
                if os.readlink("/proc/%s/fd/%s" % (pid, number)) in sockets:
                    return "pid %s (%s) listens on it" % (pid, files.text("/proc/%s/comm" % pid))
        except OSError:
            continue  # it has gone, or is somebody else's
    return "something listens on it"


def name_trouble(name: str, told: ProbedNode, hosts: Sequence[str]) -> Optional[str]:
    """What is wrong with how a node is known here by name; None: its name leads to it, and its address to no other.

    `told` is what the node said. `hosts` are the names of all nodes.
    """
    address = told["address"]
    found, why = resolve(name)
    if not found:
        return "(%s) is not known: %s" % (name, why)
    own = {*(one for one in told["own"] if not network.is_loopback(one)), address}
    if network.is_loopback(address):  # all nodes are on this machine
        own.update(told["own"])
    if not own.intersection(found):
        return "(%s) leads to %s, and the node has %s" % (name, ", ".join(found[:3]), address)
    called = (_name_of(address) or name).partition(".")[0]
    if called != name.partition(".")[0] and called in [host.partition(".")[0] for host in hosts]:
        return "(%s) leads to %s, and that address back to %s" % (name, address, called)
    return None


def _name_of(address: str) -> Optional[str]:
    try:
        return socket.gethostbyaddr(address)[0]
    except (OSError, UnicodeError):
        return None
