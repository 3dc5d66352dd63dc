"""What a node tells of a process that has failed: its last output, and what was measured of its death."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict, Optional, cast

from ..spec import facts as facts_
from . import evidence

if TYPE_CHECKING:
    from ..spec.plan import Plan
    from ..spec.report import RankEnd


class Autopsy:
    """Made before the processes start; `began` for each that has; `of` once one has failed."""

    def __init__(self, plan: Plan, facts: facts_.Facts) -> None:
        self._plan = plan
        self._facts = facts
        self._watch = evidence.Watch([facts.run_dir, os.getcwd(), facts.inherited.get("TMPDIR", "/tmp")])  # nosec B108 # only looked at
        self._groups: Dict[int, Optional[evidence.Group]] = {}

    def began(self, pid: int) -> None:
        self._groups[pid] = evidence.cgroup_of(pid)

    def of(self, pid: Optional[int], log: str, code: int, signum: Optional[int]) -> RankEnd:
        """traceback, error, last_lines, evidence, and the patterns of the job's rules that the output has."""
        from . import patterns, tracebacks  # what only a failure needs is imported then

        group = self._groups.get(pid) if pid is not None else None
        found = self._watch.of(group, code, signum)
        facts = self._facts
        if facts.interface is not None:
            found["interface"] = facts.interface
        found["master"] = facts_.endpoint(facts.addresses[0], facts.ports[0][0])
        found["ports"] = sorted({port for ports in (facts.ports[0], *facts.ports[1:8]) for port in ports})
        words = tracebacks.last_words(log)
        return cast("RankEnd", dict(words, evidence=found, matched=patterns.matches(self._plan, log)))

    def before(self, stopped_at: float, pid: int, log: str, code: int, signum: int) -> RankEnd:
        """The same of a process that had failed and was on its way out when it got its SIGTERM, with `failed_before`:
        when it wrote its last. Empty for one that had not failed."""
        try:
            written = os.stat(log).st_mtime
        except OSError:
            return {}
        words = self.of(pid, log, code, signum) if written < stopped_at else {}
        return {**words, "failed_before": written} if words.get("error") else {}
