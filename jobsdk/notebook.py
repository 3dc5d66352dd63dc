"""Notebooks and scripts, and how errors look in them: the lines that led there, and what is wrong; nothing of ours.

IPython shows what an exception's `_render_traceback_` gives instead of a traceback of many screens. `%debug` still
enters the whole of it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

    class Views(Protocol):
        """Draws objects as HTML, and a run as a bundle of MIME types; `show` displays a run and keeps it up to date."""

        def of_job(self, job: Any) -> str: ...
        def of_explanation(self, explained: Any) -> str: ...
        def of_metrics(self, points: Any) -> str: ...
        def of_run(self, run: Any) -> dict[str, str]: ...
        def show(self, run: Any) -> None: ...


def views() -> Views:
    """What draws. It stands above all that it draws, so that `jobsdk` itself loads it."""
    import jobsdk

    return jobsdk._views()


def shown(error: BaseException) -> list[str]:
    """What a cell ends with, line by line."""
    import linecache
    import traceback

    lines = []
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == "__main__":  # typed into the notebook
            source = linecache.getline(frame.f_code.co_filename, number).strip()
            lines.append(f"line {number}: {source}")
    name, text = type(error).__name__, str(error)
    return [*lines, f"{name}: {text}" if text else name]


def uncaught(error: BaseException) -> str:
    """What a script ends with: the traceback without the frames of jobsdk."""
    import traceback

    shown = traceback.TracebackException.from_exception(error)
    ours = os.path.dirname(os.path.abspath(__file__)) + os.sep
    one: traceback.TracebackException | None = shown
    while one is not None:
        theirs = [frame for frame in one.stack if not frame.filename.startswith(ours)]
        one.stack = traceback.StackSummary.from_list(theirs)
        one = one.__cause__ or one.__context__
    return "".join(shown.format())


def is_ours(error: BaseException) -> bool:
    """Whether an error is shown without the frames of jobsdk: it is one of jobsdk's, or was given to `show_briefly`."""
    return hasattr(error, "_render_traceback_")


def is_notebook() -> bool:
    """Whether what is displayed goes to a page: the process is a Jupyter kernel."""
    return cell() is not None


def cell() -> int | None:
    """The number of the cell that runs; None outside of a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return None
    count: int = shell.execution_count  # type: ignore[union-attr]
    return count


def show_briefly(error: BaseException) -> None:
    """Have IPython, and the end of a script, show an error of another class as they show one of jobsdk's."""
    error._render_traceback_ = lambda: shown(error)  # type: ignore[attr-defined]
