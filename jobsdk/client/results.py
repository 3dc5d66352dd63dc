"""What the client returns besides runs: findings, and when a run was submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import datetime

    from jobsdk.findings import Finding


class CreationContext(NamedTuple):
    """When the run was submitted."""

    created_at: datetime.datetime
    created_by: str | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> CreationContext:
        """As the facts of a run's folder have it."""
        import datetime

        created = datetime.datetime.fromtimestamp(facts.get("created") or 0.0, datetime.timezone.utc)
        return cls(created, facts.get("user"))


class Validation(NamedTuple):
    """The result of `jobs.validate`: all findings."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether the job can be submitted."""
        return not any(finding.is_error for finding in self.findings)

    @property
    def error_messages(self) -> dict[str, str]:
        """The errors: field -> message."""
        from jobsdk.findings import dotted

        return {dotted(finding.path): finding.message for finding in self.findings if finding.is_error}

    def __repr__(self) -> str:
        return "\n".join(map(str, self.findings)) or "no findings: the job is valid"
