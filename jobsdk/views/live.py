"""A run's card in a notebook, which goes on by itself until the run has ended."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from jobsdk.errors import JobsdkError
from jobsdk.views import cards
from jobsdk.views.watched import Watched

if TYPE_CHECKING:
    from jobsdk.run import Run

_EVERY = 0.5  # seconds between two pictures
_LINES = 6
_RESULT = 300  # characters


class LiveCard:
    """Draws a run, again and again, where it was displayed first."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._watched = Watched(run.folder)

    def data(self) -> tuple[dict[str, str], bool]:
        """The card as it is now, as HTML and as plain text, and whether it is the last one."""
        watched = self._watched
        watched.refresh()
        summary = watched.summary()
        count = summary["lines"]
        lines = [f"[{rank}] {text}" for _, rank, text in watched.lines(max(0, count - _LINES), _LINES, None)]
        page = cards.of_run(self._run, summary, watched.states(), lines, self._result(summary))
        return {"text/html": page, "text/plain": repr(self._run)}, summary["is_over"]

    def _result(self, summary: dict[str, Any]) -> str:
        """What came of it: of a function what it returned, else where its outputs are."""
        if summary["status"] != "Completed":
            return ""
        if self._run.is_of_function:
            try:
                text = repr(self._run.result(0))
            except (JobsdkError, TimeoutError) as error:
                text = str(error)
            return text if len(text) <= _RESULT else text[: _RESULT - 1] + "…"
        outputs = self._run.outputs
        return ", ".join(f"{name}: {outputs[name].path}" for name in outputs if name != "default")

    def show(self) -> None:
        """Display it, and keep it up to date in the background until the run has ended."""
        from IPython.display import display

        data, is_over = self.data()
        handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        if not is_over and handle is not None:
            threading.Thread(target=self._follow, args=(handle, data), daemon=True, name="jobsdk-card").start()

    def _follow(self, handle: Any, shown: dict[str, str]) -> None:
        ended, is_over = threading.Event(), False
        while not is_over:
            ended.wait(_EVERY)
            data, is_over = self.data()
            if data != shown:
                shown = data
                handle.update(data, raw=True)
