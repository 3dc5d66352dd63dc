"""What the client's operations give besides runs: a compiled job, findings, a cancellation under way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jobsdk.compute.base import Compute, Spec
    from jobsdk.job.command import CommandJob
    from jobsdk.job.findings import Finding
    from jobsdk.plan import Plan
    from jobsdk.run import Run


class Compiled(NamedTuple):
    """A job made ready for a compute, before anything is written. `secrets` are the parts that `plan` leaves out for
    being secret; `spec` is what the compute's engine takes."""

    job: CommandJob
    name: str
    plan: Plan
    secrets: dict[str, Any]
    compute: Compute
    spec: Spec
    warnings: tuple[Finding, ...]

    @property
    def native(self) -> Spec:
        """`spec` as it is stored and shown, without what looks like a secret: a password in a package index's URL."""
        from jobsdk.bootstrap.secrets import Redactor

        spec: Spec = Redactor().data(self.spec)
        return spec

    def __repr__(self) -> str:
        return f"Compiled(name={self.name!r}, compute={self.compute.name!r}, spec={self.native!r})"


class Validation(NamedTuple):
    """The result of `jobs.validate`: everything that was found."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether the job can be submitted."""
        return not any(finding.is_error for finding in self.findings)

    @property
    def error_messages(self) -> dict[str, str]:
        """The errors: field -> message."""
        from jobsdk.job.findings import dotted

        return {dotted(finding.path): finding.message for finding in self.findings if finding.is_error}

    def __repr__(self) -> str:
        return "\n".join(map(str, self.findings)) or "no findings: the job is valid"


class Cancellation:
    """A cancellation under way, as Azure ML's `begin_cancel` gives one."""

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
        """The same as `wait`: Azure ML's gives nothing either."""
        self.wait(timeout)
