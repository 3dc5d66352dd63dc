"""A run, as the client returns it: live, and usable from any process."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from jobsdk import compute as computes
from jobsdk import notebook
from jobsdk.client.results import CreationContext
from jobsdk.errors import ComputeError, JobFailed
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.state import State

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.report import RunReport
    from jobsdk.client.curves import Metrics
    from jobsdk.compute.base import Compute
    from jobsdk.job.kinds import Items
    from jobsdk.runs.logs import Chosen, Shown, Sink

#: What of a run can be changed after its submission.
CHANGEABLE = ("display_name", "description", "tags", "properties")


class Run:
    """One execution of a job.

    `status`, `exit_code`, `report` and `outputs` are read again at each use. `display_name`, `description`, `tags` and
    `properties` can be changed, and are kept by `MLClient().jobs.create_or_update(run)`.
    """

    type = "command"

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.name = folder.name
        facts = folder.facts()
        self.display_name: str = facts.get("display_name") or folder.name
        self.description: str | None = facts.get("description")
        self.tags: dict[str, Any] = dict(facts.get("tags") or {})
        self.properties: dict[str, Any] = dict(facts.get("properties") or {})
        self.experiment_name: str | None = facts.get("experiment")
        self.compute: str = facts.get("compute") or computes.LOCAL
        self.command: str | None = facts.get("command")
        self.distribution: str | None = facts.get("distribution")
        self.nodes: int | None = facts.get("nodes")
        self.processes: int | None = facts.get("processes")
        self.archived = bool(facts.get("archived"))
        self.streamed_in: int | None = None  # a notebook's cell, whose card need not repeat the lines

    def __repr__(self) -> str:
        return f"Run(name={self.name!r}, status={self.status!r}, compute={self.compute!r})"

    def _ipython_display_(self) -> None:
        """Show a card in a notebook that updates itself while the run is active."""
        if not notebook.is_notebook() or self.folder.recorded_state().is_terminal:
            raise NotImplementedError  # by which IPython goes on with what it has else: the next method, or repr()
        notebook.views().show(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return notebook.views().of_run(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.folder.path == other.folder.path

    def __hash__(self) -> int:
        return hash(self.folder.path)

    @property
    def creation_context(self) -> CreationContext:
        """When the run was submitted, and by whom."""
        return CreationContext.of(self.folder.facts())

    @property
    def studio_url(self) -> str | None:
        """The run's page in Azure ML's studio; None for a run elsewhere."""
        url: str | None = self._place().get("studio_url")
        return url

    @property
    def services(self) -> dict[str, Any]:
        """The services that Azure ML started beside the job: mappings with endpoint, status and port."""
        return dict(self._place().get("services") or {})

    def _place(self) -> dict[str, Any]:
        """What is known of it where it is, besides what all runs have."""
        return self.folder.read_json("azureml.json")

    # -- how it goes ---------------------------------------------------------------------------------------------

    @property
    def target(self) -> Compute:
        """The compute that the run is on."""
        return computes.of_run(self.folder)

    def state(self) -> State:
        """Return the run's state. Detects a run whose supervisor was killed."""
        try:
            target = self.target
        except ComputeError:  # its type is not installed any more, or does not take its settings any more
            return self.folder.recorded_state()
        return target.status(self.folder)

    @property
    def status(self) -> str:
        """Queued, Preparing, Starting, Running, CancelRequested, or how it ended: see `jobsdk.runs.state.TERMINAL`."""
        return self.state().status

    @property
    def exit_code(self) -> int | None:
        """The exit code of the rank that failed first (128 + n for signal n), 0 on success, None before the end."""
        return self.state().exit_code

    @property
    def report(self) -> RunReport:
        """How the run ended and why; empty before. docs/reference/report.md lists the keys."""
        return self.folder.report()

    @property
    def metrics(self) -> Metrics:
        """The points that all ranks reported or logged with MLflow, by metric: (step, value, time, rank).

        `jobsdk.runs.metrics.last` returns the latest value. Metrics on your own tracking server are not included.
        """
        from jobsdk.client.curves import Metrics
        from jobsdk.runs import metrics

        return Metrics(metrics.read(self.name, str(self.folder.path)))

    @property
    def outputs(self) -> Items:
        """The named outputs: `run.outputs.model.path` is a path that another job can take as an input.

        `default` is what the script wrote to ./outputs.
        """
        from jobsdk.findings import Report
        from jobsdk.job.io import OUTPUTS

        given = self.folder.plan().get("outputs", {})
        try:
            paths = self.target.outputs(self.folder)
        except ComputeError:  # as in `state`
            paths = {}
        values = {"default": {"path": str(self.folder.path / "outputs" / "default")}}
        values.update({name: {"type": given[name]["type"], "path": path} for name, path in paths.items()})
        outputs: Items = OUTPUTS.structure(values, ("outputs",), Report())
        return outputs

    @property
    def inputs(self) -> Items:
        """The inputs as submitted, with absolute local paths."""
        from jobsdk.findings import Report
        from jobsdk.job.io import INPUTS

        values: dict[str, Any] = {}
        for name, given in self.folder.plan().get("inputs", {}).items():
            fields = {"type": given.get("type"), "path": given.get("uri"), "mode": given.get("mode")}
            values[name] = given["literal"] if "literal" in given else {k: v for k, v in fields.items() if v}
        inputs: Items = INPUTS.structure(values, ("inputs",), Report())
        return inputs

    # -- what can be done with it --------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until the run ends, whether it succeeds or not. Raises TimeoutError after `timeout` seconds.

        Ctrl-C or a notebook's interrupt stops waiting, here and in `result` and `stream`. The run continues.
        """
        with self._left_to_itself():
            self.target.wait(self.folder, timeout)
        self._index()
        return self

    def done(self) -> bool:
        """Return whether the run has ended, successfully or not."""
        return self.state().is_terminal

    def result(self, timeout: float | None = None, *, all_ranks: bool = False, trusted: bool = True) -> Any:
        """Wait for the end. The run itself, or of a function what rank 0 returned; with `all_ranks` a list of what all
        ranks did. Plain data comes as JSON, anything else as a pickle, which can run code when it is read: with
        `trusted=False` none is.

        Raises JobFailed unless the run has completed, TimeoutError after `timeout` seconds; of a function what the rank
        that failed first has raised, with its traceback there as the cause. With `trusted=False` that is a JobFailed
        with the same cause, and a value that is a pickle raises JobsdkError.
        """
        self.wait(timeout)
        if not self.is_of_function:
            self._raise_failure(("Completed",))
            return self
        from jobsdk.bootstrap import distributions
        from jobsdk.client import outcome

        error = self.exception(trusted=trusted)
        if error is not None:
            raise error
        if not all_ranks:
            return outcome.value(self.folder, 0, trusted)
        ranks = range(distributions.of(self.folder.plan()).world_size())
        return [outcome.value(self.folder, rank, trusted) for rank in ranks]

    def exception(self, timeout: float | None = None, *, trusted: bool = True) -> BaseException | None:
        """Wait for the end. Return what `result` raises for a failed run, None for a completed one."""
        self.wait(timeout)
        if self.report.get("status") == "Completed":
            return None
        failure = self._failure()
        if not self.is_of_function:
            return failure
        from jobsdk.client import outcome

        return outcome.exception(self.folder, failure, trusted)

    @property
    def is_of_function(self) -> bool:
        """Whether the run calls a Python function; `result` then returns the function's value."""
        from jobsdk.runs.provenance import FUNCTION

        return FUNCTION in self.properties

    def stream(self, *, ranks: Chosen = None, tail: int | None = None, out: Sink | None = None) -> Run:
        """Show the ranks' output until the end. `ranks` is like "0,3-5" or "last"; `tail` counts earlier lines.

        `out` takes bytes; without it they go to stdout. Raises JobFailed if the job failed, with the rank that failed
        first, its node and its last traceback; ValueError for ranks that the run does not have.
        """
        with self._left_to_itself():
            self.logs(ranks=ranks, tail=tail, out=out, follow=True)
        self.streamed_in = notebook.cell()
        self._index()
        self._raise_failure(("Completed", "Canceled"))
        return self

    def logs(
        self, *, ranks: Chosen = None, tail: int | None = None, out: Sink | None = None, follow: bool = False,
        shown: Shown | None = None,
    ) -> None:  # fmt: skip
        """Show the ranks' output so far, or with `follow` until the end; see `stream`.

        A call with the `shown` of an interrupted call continues where that one stopped.
        """
        from jobsdk.runs.logs import View

        terminal = out is None and sys.stdout.isatty()
        color = terminal and not os.environ.get("NO_COLOR")
        sys.stdout.flush()  # what was printed before stays before
        sink = out or _stdout()
        view = View(
            ranks, tail, terminal, color, partial(_say, self.name), settled=isinstance(sink, _TextSink), shown=shown
        )
        self.target.logs(self.folder, sink, view, follow=follow)

    def stacks(self, timeout: float = 20.0) -> dict[str, Any]:
        """Return the Python stacks of all ranks, without disturbing them.

        `groups` has lines such as `7 ranks in all_reduce at train.py:88 (ranks 0-5, 7)`, `ranks` the Python stacks
        of every process of each rank. Raises JobsdkError if the run has ended, or does not answer within `timeout`
        seconds.
        """
        from jobsdk.client.stacks import ask

        return ask(self.folder, self.target, timeout)

    def cancel(self) -> Run:
        """Request that the run end, and return at once. An ended run stays as it is."""
        self.target.cancel(self.folder, f"pid {os.getpid()}")
        return self

    # -- inside --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _left_to_itself(self) -> Iterator[None]:
        """On Ctrl-C while following, say that the run continues and how to end it."""
        try:
            yield
        except KeyboardInterrupt as interrupt:
            if not self.state().is_terminal:
                again, end = f"jobsdk job stream {self.name}", f"jobsdk job cancel {self.name}"
                _say(self.name, f"the run goes on: {again}, or .stream(), shows it again; {end}, or .cancel(), ends it")
            notebook.show_briefly(interrupt)
            raise

    def _index(self) -> None:
        from jobsdk.runs.history import History

        History().record(self.folder)

    def _raise_failure(self, fine: tuple[str, ...]) -> None:
        if self.report.get("status", "Lost") not in fine:
            raise self._failure()

    def _failure(self) -> JobFailed:
        from jobsdk.runs import card

        return JobFailed(card.of_run(self.folder), self.report)


def _say(name: str, text: str) -> None:
    from jobsdk.terminal import guarded

    print(f"{name}: {text}", file=guarded(sys.stderr))


class Cancellation:
    """A cancellation in progress, as Azure ML's `begin_cancel` returns it."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def done(self) -> bool:
        """Whether the run has ended."""
        return self._run.state().is_terminal

    def status(self) -> str:
        """The run's status."""
        return self._run.status

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the run's end. Raises TimeoutError after `timeout` seconds."""
        self._run.wait(timeout)

    def result(self, timeout: float | None = None) -> None:
        """Wait for the run's end. Returns nothing, as in Azure ML."""
        self.wait(timeout)


def _stdout() -> Sink:
    """Python's stdout for bytes. Under PYTHONUNBUFFERED it may write less than it is given; ours does not."""
    buffer: Any = getattr(sys.stdout, "buffer", None)
    if buffer is not None and sys.stdout.isatty():
        from jobsdk.terminal import Guard

        return Guard(buffer, sys.stdout.encoding or "utf-8")
    if isinstance(buffer, io.RawIOBase):
        return open(buffer.fileno(), "wb", closefd=False)
    return buffer or _TextSink()


class _TextSink:
    """stdout where it takes text only, as in a notebook."""

    def __init__(self) -> None:
        # A very long line comes in pieces, which may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes, /) -> None:
        sys.stdout.write(self._decoder.decode(data))

    def flush(self) -> None:
        sys.stdout.flush()
