"""A run's card in a notebook, which goes on by itself until the run has ended."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from jobsdk import notebook
from jobsdk.errors import JobsdkError
from jobsdk.views import cards
from jobsdk.views.merged import label
from jobsdk.views.watched import Watched

if TYPE_CHECKING:
    from jobsdk.client.run import Run

_EVERY, _LATEST, _PART = 0.5, 5.0, 0.005  # seconds between two pictures: at least, at most, as a part of the run's time
_LINES = 6
_RESULT = 300  # characters


class LiveCard:
    """Draws a run, wherever it is displayed. It waits for no engine."""

    def __init__(self, run: Run, *, with_lines: bool = True) -> None:
        self._run = run
        self._watched = Watched(run.folder)
        self._count = _LINES if with_lines else 0

    def data(self) -> tuple[dict[str, str], dict[str, Any]]:
        """The card as it is now, as HTML and as plain text, and the summary of the run."""
        watched = self._watched
        watched.refresh()
        summary = watched.summary()
        begin = max(0, summary["lines"] - self._count)
        lines = [f"[{label(rank)}] {text}" for _, rank, text in watched.lines(begin, self._count, None)]
        page = cards.of_run(self._run, summary, watched.states(), lines, self._result(summary))
        run = self._run
        text = f"Run(name={run.name!r}, status={summary['status']!r}, compute={run.compute!r})"
        return {"text/html": page, "text/plain": text}, summary

    def _result(self, summary: dict[str, Any]) -> str:
        """What came of it: of a function what it returned, else where its outputs are."""
        if summary["status"] != "Completed":
            return ""
        if self._run.is_of_function:
            try:
                text = repr(self._run.result(0, trusted=False))  # to look at a run must not run anything
            except (JobsdkError, TimeoutError) as error:
                text = str(error)
            return text if len(text) <= _RESULT else text[: _RESULT - 1] + "…"
        outputs = self._run.outputs
        return ", ".join(f"{name}: {outputs[name].path}" for name in outputs if name != "default")


class _Display:
    """All places where one run was displayed while it ran: one thread keeps them up to date."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._card = LiveCard(run)
        self._lock = threading.Lock()
        self._handles: list[Any] = []

    def add(self, handle: Any) -> None:
        with self._lock:
            self._handles.append(handle)

    def show(self) -> tuple[dict[str, str], dict[str, Any]]:
        with self._lock:
            return self._card.data()

    def follow(self, shown: dict[str, str]) -> None:
        """Until the run has ended, or is not there any more."""
        ended, summary, pause = threading.Event(), {"is_over": False}, _EVERY
        try:
            while not summary["is_over"] and self._run.folder.path.is_dir():
                ended.wait(pause)
                data, summary = self.show()
                if summary["is_over"]:
                    with _lock:
                        _displays.pop(str(self._run.folder.path), None)  # who displays it from now on needs no thread
                age = summary["now"] - (summary["submitted"] or summary["now"])
                pause = min(_LATEST, max(_EVERY, age * _PART)) * max(1, len(self._handles) // 4)
                if data != shown or summary["is_over"]:
                    shown = data
                    for handle in list(self._handles):
                        handle.update(data, raw=True)
        except Exception:  # nosec B110 # the run was deleted, or the kernel ends: the card stays as it was
            pass
        finally:
            with _lock:
                _displays.pop(str(self._run.folder.path), None)


_lock = threading.Lock()
_displays: dict[str, _Display] = {}


def of_run(run: Run) -> dict[str, str]:
    """A run as it is now; without the lines that the same cell has streamed."""
    is_streamed = run.streamed_in is not None and run.streamed_in == notebook.cell()
    return LiveCard(run, with_lines=not is_streamed).data()[0]


def show(run: Run) -> None:
    """Display a run, and keep it up to date in the background until it has ended."""
    from IPython.display import display

    key = str(run.folder.path)
    with _lock:
        found = _displays.get(key)
        one = found or _Display(run)
    data, summary = one.show()
    handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
    if summary["is_over"] or handle is None:
        return
    with _lock:
        one.add(handle)
        is_followed = _displays.get(key) is one
        if not is_followed:
            _displays[key] = one
    if not is_followed:
        threading.Thread(target=one.follow, args=(data,), daemon=True, name="jobsdk-card").start()
