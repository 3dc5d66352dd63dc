"""That a rank has ended the whole job through its launcher. Few jobs need it."""

from __future__ import annotations

from typing import NamedTuple

from ..spec.ranks import Process


class Abort(NamedTuple):
    """By a call such as MPI_Abort."""

    process: Process
    exit_code: int  # the one it asked for
    kind: str  # the class of such a failure
    what: str  # in words
