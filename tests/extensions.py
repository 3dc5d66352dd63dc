"""What DeepSpeed compiles when it is first used."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from pathlib import Path

_COMPILE = "from deepspeed.comm.torch import build_shm_op; assert build_shm_op() is not None"


@functools.lru_cache
def compiled() -> str:
    """The folder of it, when all is there: what ended while it is made would leave a lock that others wait on."""
    folder = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.expanduser("~/.cache/torch_extensions")
    _remove_stale_locks(folder)
    here = os.path.dirname(sys.executable)  # of ninja
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "PATH": here + os.pathsep + os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", _COMPILE], env=environment, check=True)
    return folder


def _remove_stale_locks(folder: str) -> None:
    """torch waits forever for a lock whose process was killed. A living one keeps the file open."""
    held = set()
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # the process has ended, or is another user's
            for descriptor in descriptors.iterdir():
                with contextlib.suppress(OSError):  # it has been closed
                    held.add(os.readlink(descriptor))
    for lock in Path(folder).rglob("lock"):
        if os.path.realpath(lock) not in held:
            lock.unlink(missing_ok=True)
