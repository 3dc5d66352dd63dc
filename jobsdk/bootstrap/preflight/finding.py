"""One line of a diagnosis, and how lines are ordered."""

from __future__ import annotations

from typing import Iterable, List, NamedTuple, Optional

OK, WARNING, PROBLEM = "ok", "warning", "problem"


class Finding(NamedTuple):
    """One line of a diagnosis: `level`, what it is about, what is the case, and what to do (None: nothing)."""

    level: str
    subject: str
    text: str
    fix: Optional[str] = None


def worst_first(findings: Iterable[Finding]) -> List[Finding]:
    """Problems, then warnings, then what is right; otherwise in the order given."""
    return sorted(findings, key=lambda finding: (PROBLEM, WARNING, OK).index(finding.level))
