"""Memory limits that the kernel enforces."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from tests import engines
from tests.bootstrap.runs import wait_for
from tests.needs import needs


@contextlib.contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """A cgroup with a memory limit in bytes, of the version that this machine has. Processes enter by cgroup.procs."""
    needs("cgroup")
    folder = Path(engines.memory_cgroup()) / f"jobsdk-test-{os.getpid()}"
    folder.mkdir()
    # Without swap, or that would be used up first.
    limits = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit, "memory.max": limit}
    for name, value in {**limits, "memory.swap.max": 0}.items():
        with contextlib.suppress(FileNotFoundError, PermissionError):  # of the other version
            fd = os.open(folder / name, os.O_WRONLY)
            os.write(fd, str(value).encode())
            os.close(fd)
    try:
        yield folder
    finally:
        wait_for(lambda: _is_removed(folder))


def _is_removed(folder: Path) -> bool:
    """A process that is just ending is still in its group."""
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True
