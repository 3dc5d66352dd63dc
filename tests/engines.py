"""The engines that tests start for real and that pip cannot install into .venv: how each one is found and installed.

This table is the only one. `scripts/install-engines.sh` asks it what to install (`python3 tests/engines.py packages`),
the markers `engine(name)` and `framework(name)` are checked against it, and the closing line of a test run is made
from it. It needs only the standard library, so that it runs before .venv exists.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

INSTALL = "scripts/install-engines.sh"
#: Where the script puts what Debian does not package.
FOLDER = Path(os.environ.get("JOBSDK_ENGINES") or Path(__file__).resolve().parents[1] / ".engines")
MPICH = FOLDER / "mpich/bin/mpiexec.hydra"
AZURITE = FOLDER / "azurite/node_modules/.bin/azurite-blob"
#: Of the containers that tests run as pods.
IMAGE = "localhost/jobsdk-node:1"

#: What the tests import and pip installs with `make test`. Each is slow to start: `make check` leaves its tests out.
FRAMEWORKS = frozenset(
    {"torch", "tensorflow", "deepspeed", "mpi", "ray", "spark", "mlflow", "azure", "jupyter", "stores"}
)

#: Engines that are features of the kernel.
OF_KERNEL = frozenset({"cgroup"})


class Engine(NamedTuple):
    """`programs` must be on PATH. `packages` are Debian's, by the first program that each brings."""

    meaning: str
    programs: Sequence[str] = ()
    packages: Sequence[tuple[str, str]] = ()
    missing: Callable[[], str] = lambda: ""  # what else is not there, by name; empty if nothing
    needs_root: bool = False


def find(program: str) -> str | None:
    """The path of a program. Debian keeps daemons where a user's PATH does not lead."""
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    beside = [folder[: -len("bin")] + "sbin" for folder in folders if folder.endswith("/bin")]
    return shutil.which(program, path=os.pathsep.join([*folders, *beside]))


def libfaketime() -> Path | None:
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def azurite() -> str | None:
    return shutil.which(str(AZURITE)) or shutil.which("azurite-blob")


def _no_image() -> str:
    if shutil.which("podman") is None:
        return ""  # which is said already
    found = subprocess.run(["podman", "image", "exists", IMAGE], check=False, capture_output=True)
    return f"the image {IMAGE}" if found.returncode else ""


def memory_cgroup() -> str:
    """The folder in which memory cgroups can be made, of either version; empty where there is none."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError):
        if "memory" in (second / "cgroup.subtree_control").read_text().split() and os.access(second, os.W_OK):
            return str(second)
    return str(first) if first.is_dir() and os.access(first, os.W_OK) else ""


_CONTAINERS = "podman runc netavark aardvark-dns catatonit iptables"
_SLURM = ("sbatch", "slurmctld", "slurmd", "scontrol", "scancel", "squeue", "sacct", "sinfo", "munged")

ENGINES = {
    "btrfs": Engine(
        "btrfs, a file system whose files can share blocks",
        ["mkfs.btrfs"],
        [("mkfs.btrfs", "btrfs-progs")],
        lambda: "" if "btrfs" in Path("/proc/filesystems").read_text() else "btrfs in the kernel",
        needs_root=True,
    ),
    "azurite": Engine(
        "Azurite, the blob store of the Azure ML emulator, with Node.js that runs it",
        ["node", "npm"],
        [("node", "nodejs"), ("npm", "npm")],
        lambda: "" if azurite() else "azurite-blob",
    ),
    "cgroup": Engine(
        "a memory cgroup, in which a job runs out of memory",
        missing=lambda: "" if memory_cgroup() else "memory in /sys/fs/cgroup",
        needs_root=True,
    ),
    "chromium": Engine(
        "Chromium, in which tests look at pages and notebooks",
        packages=[("chromium", "chromium")],
        missing=lambda: "" if chromium() else "chromium",
    ),
    "compiler": Engine("the compiler with which DeepSpeed builds its extension", ["g++"], [("g++", "g++")]),
    "containers": Engine(
        "podman with an image made by debootstrap, for pods that are real containers",
        ["podman", "runc"],
        [("podman", _CONTAINERS), ("debootstrap", "debootstrap")],
        _no_image,
        needs_root=True,
    ),
    "faketime": Engine(
        "libfaketime, which gives a node a wrong clock",
        ["faketime"],
        [("faketime", "faketime")],
        lambda: "" if libfaketime() else "libfaketime",
    ),
    "java": Engine("Java, on which Spark runs", ["java"], [("java", "openjdk-17-jre-headless")]),
    "mpich": Engine(
        "MPICH with its launcher Hydra: its files would overwrite those of .venv's Open MPI",
        missing=lambda: "" if MPICH.exists() else "mpiexec.hydra",
    ),
    "network": Engine(
        "iproute2, which gives a node a network of its own", ["ip"], [("ip", "iproute2")], needs_root=True
    ),
    "openmpi": Engine(
        "the system's Open MPI, beside the newer one of .venv", ["mpirun.openmpi"], [("mpirun.openmpi", "openmpi-bin")]
    ),
    "slurm": Engine(
        "Slurm with munge, which tests start as clusters of their own",
        _SLURM,
        [("slurmctld", "slurm-wlm"), ("munged", "munge")],
        needs_root=True,
    ),
    "ssh": Engine(
        "sshd and rsync, for machines that ssh reaches",
        ["ssh", "rsync", "sshd"],
        [("sshd", "openssh-server"), ("ssh", "openssh-client"), ("rsync", "rsync")],
    ),
}


def missing(name: str) -> str:
    """What of an engine is not there, as "sbatch, munged"; empty if it can be used."""
    engine = ENGINES[name]
    lacks = [program for program in engine.programs if find(program) is None]
    if engine.needs_root and os.geteuid() != 0:
        lacks.append("root")
    return ", ".join([*lacks, *filter(None, [engine.missing()])])


def _packages() -> list[str]:
    """Debian's packages of the programs that are not there."""
    asked = {program: package for engine in ENGINES.values() for program, package in engine.packages}
    there = {"chromium": chromium}
    return [package for program, package in asked.items() if not there.get(program, lambda p=program: find(p))()]


if __name__ == "__main__":
    if sys.argv[1:] == ["packages"]:
        print(" ".join(_packages()))
    elif sys.argv[1:] == ["missing"]:
        lacking = {name: missing(name) for name in ENGINES}
        print("\n".join(f"{name}: {lacks}" for name, lacks in lacking.items() if lacks))
        sys.exit(any(lacking.values()))
    else:
        sys.exit("usage: python3 tests/engines.py packages | missing")
