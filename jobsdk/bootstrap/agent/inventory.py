"""What a node has: GPUs, driver, cores, memory, and the packages of the Python that the ranks use.

Read while the job runs already, so that it costs no start.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Dict, List, Optional

from ..preflight import machine
from ..spec import paths
from ..system import files, processes

if TYPE_CHECKING:
    from ..spec.messages import Inventory, PythonFacts

_PACKAGE = re.compile(r"(.+?)-([0-9][^-]*)(?:-.*)?\.(?:dist|egg)-info", re.IGNORECASE)


def of_node(run_dir: str, node_rank: int) -> Inventory:
    """The message about a node. Node 0 alone names its Python: the packages of all nodes would be too much to say."""
    found: Inventory = {
        "type": "inventory",
        "system": "%s %s" % (os.uname().sysname, os.uname().release),
        "cores": processes.cores(),
        "memory": machine.memory(),
        "gpus": [str(gpu["model"] or "unknown") for gpu in machine.gpus()],
        "driver": machine.driver(),
    }
    if node_rank == 0:
        found["python"] = python(paths.python_note(run_dir, node_rank))
    return found


def python(note: str) -> Optional[PythonFacts]:
    """The Python that wrote `note`; None if no rank has started one."""
    words = files.text(note).split("\0")
    if len(words) < 2:
        return None
    return {"executable": words[0], "version": words[1], "packages": packages(words[2:])}


def packages(folders: List[str]) -> Dict[str, str]:
    """The version of each package that is installed in the folders of a sys.path, as `pip freeze` finds them."""
    found: Dict[str, str] = {}
    for folder in folders:
        try:
            names = os.listdir(folder) if folder else []
        except OSError:
            continue
        for name in names:
            match = _PACKAGE.fullmatch(name)
            if match is not None:
                found.setdefault(match[1].replace("_", "-").lower(), match[2])
    return dict(sorted(found.items()))
