"""Supervisors that this process has started."""

from __future__ import annotations

import os

_children: set[int] = set()


def adopt(pid: int) -> None:
    """Note a supervisor that this process has started, so that it is reaped once it has ended."""
    _children.add(pid)


def reap() -> None:
    """Let go of supervisors started here that have ended: a long notebook would gather zombies."""
    for pid in list(_children):
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        except ChildProcessError:
            pass
        _children.discard(pid)
