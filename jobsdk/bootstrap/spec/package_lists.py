"""The installed packages of a run's Python: one file for all runs of a home that have the same ones.

A run's folder has the list as `packages.json`, a hard link to that file. It goes with the folder, wherever that is
copied. A list to which no run links any more has one link left.
"""

from __future__ import annotations

import json
import os
from typing import Mapping

from . import events

#: The folder beside that of the runs, which the SDK makes where nodes write into its own folders.
FOLDER = "package-lists"
FILE = "packages.json"


def share(run_dir: str, packages: Mapping[str, str]) -> bool:
    """Whether the run's folder has the list now; False where runs do not share their lists."""
    import hashlib

    store = os.path.join(os.path.dirname(os.path.dirname(run_dir)), FOLDER)
    if not os.path.isdir(store):
        return False
    text = json.dumps(packages)
    path = "%s/%s.json" % (store, hashlib.sha256(text.encode()).hexdigest()[:32])
    link = "%s/%s" % (run_dir, FILE)
    try:
        if not os.path.exists(path):
            events.write_json(path, packages)
        if os.path.exists(link):  # of an earlier attempt
            os.unlink(link)
        os.link(path, link)
    except OSError:  # a disk without links, or a list that was swept away meanwhile
        return False
    return True


def sweep(home: str) -> None:
    """Remove the lists to which no run links."""
    store = os.path.join(home, FOLDER)
    for name in os.listdir(store) if os.path.isdir(store) else ():
        path = os.path.join(store, name)
        try:
            if os.stat(path).st_nlink == 1:
                os.unlink(path)
        except OSError:
            pass  # another process was quicker
