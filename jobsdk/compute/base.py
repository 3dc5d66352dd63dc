"""What every kind of compute offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from jobsdk.errors import ComputeError

if TYPE_CHECKING:
    from jobsdk.job.command import CommandJob
    from jobsdk.job.findings import Finding
    from jobsdk.logs import Sink, View
    from jobsdk.plan import Plan
    from jobsdk.runs import RunFolder, State

Spec = dict[str, Any]
Warn = Callable[[str], None]


class Compute(ABC):
    """A place where jobs run.

    A job goes through `judge`, `compile`, `prepare`, `submit` in this order. What `compile` gives is what `submit`
    takes, so that a compiled job that is shown is the one that would run.
    """

    type: ClassVar[str]
    #: The names that its entry in computes.yml may have besides `type`, each with its meaning.
    settings_known: ClassVar[Mapping[str, str]] = {}

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        from jobsdk.job.findings import nearest

        self.name = name
        self.settings = dict(settings)
        for key in settings:
            if key not in self.settings_known:
                near = nearest(key, self.settings_known)
                known = f"did you mean {near!r}?" if near else f"it knows {', '.join(self.settings_known) or 'none'}"
                raise ComputeError(f"compute {name}: type {self.type} has no setting {key!r}: {known}")

    @abstractmethod
    def judge(self, job: CommandJob, plan: Plan, *, build_env: bool = False) -> Sequence[Finding]:
        """What this compute cannot do of a valid job (errors) or does not heed (warnings). Changes nothing."""

    @abstractmethod
    def compile(self, job: CommandJob, plan: Plan, *, in_place: bool = False, build_env: bool = False) -> Spec:
        """The native spec: everything that `submit` needs besides the plan, as JSON. Changes nothing."""

    @abstractmethod
    def prepare(self, spec: Spec, warn: Warn) -> None:
        """What may take long, and may fail, before there is a run. Raises ComputeError."""

    @abstractmethod
    def submit(self, spec: Spec, run: RunFolder, warn: Warn) -> None:
        """Start the run whose folder holds the plan and `spec`; returns at once. Raises JobsdkError."""

    @abstractmethod
    def cancel(self, run: RunFolder, by: str) -> None:
        """Ask that the run be ended; a run that has ended stays as it is."""

    def status(self, run: RunFolder) -> State:
        """How far the run is."""
        return run.state()

    def logs(self, run: RunFolder, out: Sink, view: View, *, follow: bool) -> State:
        """Write the ranks' lines to `out`: those there are, or with `follow` all until the run's end."""
        from jobsdk.logs import Follower

        follower = Follower(run, out, view)
        if follow:
            return follower.follow()
        follower.drain()
        return run.state()

    def outputs(self, run: RunFolder) -> dict[str, str]:
        """Where each named output of the run is, in a form that another job can take as an input's path."""
        return run.output_paths()
