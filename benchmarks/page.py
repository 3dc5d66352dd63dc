"""docs/benchmarks.md, written from what was measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import textwrap
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from benchmarks import launchers
from benchmarks.harness import Table
from jobsdk.bootstrap.system.processes import cores

PATH = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
#: All benchmarks, in the order of the page.
NAMES = [
    "import_and_validate",
    "launch",
    "first_step",
    "restart",
    "cifar_epoch",
    "logs",
    "plan_scale",
    "control_plane",
    "snapshot",
    "failure",
    "azure_submit",
    "functions",
    "views",
    "kubernetes_follow",
]
PEERS = ["torch", "nvidia-resiliency-ext", "accelerate", "azure-ai-ml", "torchx", "submitit", "pyspark", "ray"]

_HEAD = """\
# Benchmarks

This page compares jobsdk with similar tools. Each table was measured in one session on one machine. `make bench`
rewrites this page. Run it on an otherwise idle machine, because launchers divide the cores of a busy one differently.

Each cell of another tool shows its ratio to jobsdk, then its own figure. For seconds, bytes and megabytes, less is
better, so a ratio above 1 favors jobsdk. For figures per second, a ratio below 1 does. The tools take turns
(A B C A B C ...), the first round does not count, and figures are medians. Absolute times hold for this machine only;
ratios carry over better.
"""


def write(tables: Mapping[str, Table], quick: bool) -> None:
    """Write the sections of what was measured; those of other benchmarks stay as they are."""
    sections = _kept() if PATH.exists() else {}
    sections.update({name: _section(name, table, quick) for name, table in tables.items()})
    PATH.write_text("\n".join([_HEAD, _machine(), *(sections[name] for name in NAMES if name in sections)]))


def _kept() -> dict[str, str]:
    """The page's sections by the names of their benchmarks."""
    return {
        name: f"<!-- {name} -->\n{text.rstrip()}\n"
        for name, text in re.findall(r"<!-- (\w+) -->\n(.*?)(?=<!-- |\Z)", PATH.read_text(), re.DOTALL)
    }


def _section(name: str, table: Table, quick: bool) -> str:
    command = f"`.venv-bench/bin/python -m benchmarks {name}{' --quick' if quick else ''}`"
    date = time.strftime("%Y-%m-%d")
    method = _wrapped(f"{table.method} Measured on {date}; to reproduce, after `make bench`: {command}.")
    return f"<!-- {name} -->\n## {table.title}\n{_wrapped(table.meaning)}\n\n{table}\n\n{method}\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _machine() -> str:
    facts = {
        "CPU": f"{_field('/proc/cpuinfo', 'model name') or platform.processor()}, {cores()} cores",
        "memory": _memory(),
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **{name: _version(name) for name in PEERS},
        "Open MPI": _open_mpi(),
    }
    lines = [f"| {name} | {value} |" for name, value in facts.items()]
    return "\n".join(["| machine | |", "|---|---|", *lines, ""])


def _field(path: str, name: str) -> str:
    if not os.path.exists(path):
        return ""
    lines = (line.partition(":") for line in Path(path).read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")


def _memory() -> str:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{total / 2**30:.0f} GiB"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _open_mpi() -> str:
    program = launchers.find("mpirun")
    if program is None:
        return "not installed"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[-1] if "Open MPI" not in said else said.splitlines()[0].split()[-1]
