"""When a job that has failed is started again: fields of the job, all jobsdk's own."""

from __future__ import annotations

import re
from typing import Any

from jobsdk.findings import Path, Report, show
from jobsdk.job.durations import Duration
from jobsdk.job.kinds import INVALID, Integer, Kind, ListOf, Schema, whole
from jobsdk.job.model import Model, field


class RetryRule(Kind):
    """An exit code (1 to 255), the name of a class of failures, or a regular expression for the output."""

    says = "an exit code, a class of failures such as out_of_memory, or a pattern for the output"

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        code = whole(value)
        if code is not None:
            if 1 <= code <= 255:
                return code
            report.error(path, f"must be an exit code from 1 to 255, got {show(value)}", "128 + n stands for signal n")
            return INVALID
        if not isinstance(value, str) or not value.strip():
            return self.refuse(value, path, report)
        try:
            re.compile(value)
        except re.error as error:
            report.error(path, f"{show(value)} is no regular expression: {error}", "escape special characters with \\")
            return INVALID
        return value

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 255}, {"type": "string", "pattern": r"\S"}]}


_RULES = ListOf(RetryRule(), single=True)


class Restarts(Model):
    """The part of a job that says when it is started again after a failure. All nodes start again together."""

    max_restarts: int = field(
        Integer(0), default=0, doc="How many times the job is started again after a failure (jobsdk's own)."
    )
    max_preemptions: int = field(
        Integer(0),
        default=0,
        doc="How many times it is started again after its nodes were taken away with a warning (SIGTERM to a "
        "bootstrap); these do not count as restarts (jobsdk's own).",
    )
    max_no_progress: int = field(
        Integer(0),
        default=3,
        doc="How many attempts in a row may fail without a later step than before, in reports or MLflow metrics, until "
        "the job is not restarted any more; 0 for no limit (jobsdk's own).",
    )
    restart_delay: float | None = field(
        Duration(),
        default=None,
        doc="Seconds before the first restart, or text such as 30s; doubled for each further one in a row without "
        "progress, up to 5 minutes. By default 0 s, 1 s, 2 s, 4 s (jobsdk's own).",
    )
    retry_on: int | str | list[int | str] | None = field(
        _RULES,
        default=None,
        doc="Only these failures are worth a restart: exit codes, classes such as out_of_memory, or patterns for the "
        "output of the ranks that failed (jobsdk's own).",
    )
    never_retry_on: int | str | list[int | str] | None = field(
        _RULES, default=None, doc="Failures that are not worth a restart, written as in retry_on (jobsdk's own)."
    )
