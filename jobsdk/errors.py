"""The errors that jobsdk raises. Their text tells people what is wrong, where, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.report import RunReport
    from jobsdk.findings import Finding, Report


class JobsdkError(Exception):
    """The base of all errors of jobsdk."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows."""
        from jobsdk.notebook import shown

        return shown(self)


class ValidationError(JobsdkError, ValueError):
    """A job, or a part of one, is not valid.

    `findings` has all errors and warnings, in the order of the job's description. `str()` shows one finding per line.
    """

    findings: tuple[Finding, ...]

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(map(str, self.findings)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.findings,)

    @classmethod
    def raise_for(cls, report: Report) -> None:
        """Raise it with all findings, if there are errors among them."""
        if report.errors:
            from jobsdk.findings import in_order

            raise cls(in_order(report.findings))


class ComputeError(JobsdkError):
    """A compute is unknown, cannot be reached, or refused a job."""


class RunNotFound(JobsdkError, LookupError):
    """No run has this name."""


class RunExists(JobsdkError):
    """A run of this name exists already."""


class FileExists(JobsdkError, FileExistsError):
    """A file that was to be written exists already."""


class JobFailed(JobsdkError):
    """A run did not complete. `report` has its status, exit code and cause."""

    report: RunReport

    def __init__(self, message: str, report: RunReport | None = None) -> None:
        super().__init__(message)
        self.report = report or {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.report)
