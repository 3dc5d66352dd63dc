"""What node 0 says of the starts of a job: why one failed, whether there is another, and the report."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, List, Optional, Sequence

from ..spec import events
from .attempt import Attempt

if TYPE_CHECKING:  # what few jobs need is imported where it is used
    from ..failures.report import Outcome
    from ..spec.messages import Standing
    from ..spec.plan import Plan
    from ..spec.report import Cause, RankEnd, RestartSummary, RunReport
    from ..spec.secrets import Redactor
    from .restarts import Decision


class Verdict:
    """How a start of the job ended; `again` where it is to be started once more, `why` it is not otherwise."""

    def __init__(self, outcome: Outcome, again: Optional[Decision] = None, why: str = "") -> None:
        self.outcome = outcome
        self.again = again
        self.why = why


class Judge:
    """Keeps what of the budgets for restarts was used, and secrets out of all that it says.

    `restart` says how often the job was started before this process was, `used` (restarts.Used) what was used by then.
    """

    def __init__(self, plan: Plan, run_dir: str, restart: int, used: Optional[Sequence[int]]) -> None:
        self._plan = plan
        self._used = used
        self._secrets: Optional[Redactor] = None
        self._restarts: List[RestartSummary] = []
        if restart:
            self._restarts = [event["summary"] for event in events.of(run_dir, "restart")]

    def standing(self, number: int, is_due: bool, started: float) -> Standing:
        """What another node 0 needs to know to go on from the attempt `number`."""
        return {"restart": number, "is_due": is_due, "lost_as": "node_lost", "used": self._used or (),
                "restarts": self._restarts, "started": started}  # fmt: skip

    def take_over(self, standing: Standing) -> None:
        """Go on with the budgets and restarts of an earlier node 0."""
        self._used = standing["used"]
        self._restarts = list(standing["restarts"])

    def words(self, cause: RankEnd) -> str:
        """A failure in one line."""
        from ..failures import report

        return self._redactor().text(report.judged(self._plan, cause)["message"])

    def likely(self, now: Attempt) -> Optional[str]:
        """What the report will most likely say: known at once, while ranks may still need their grace time."""
        if not now.failures:
            return None
        from ..failures import report

        message = report.outcome(self._plan, "failure", now.ends, now.failures).message
        return self._redactor().text(message)

    def of(self, now: Attempt, *, can_go_on: bool) -> Verdict:
        """The verdict on a start that has ended; `can_go_on`: there is somebody to start the job again."""
        from ..failures import report
        from . import restarts

        outcome = report.outcome(self._plan, now.reason, now.ends, now.failures)
        if outcome.cause is None:
            return Verdict(outcome)
        outcome = outcome._replace(**self._redactor().data(outcome._asdict()))
        assert outcome.cause is not None
        if now.reason not in (None, "failure") or any(one.get("final") for one in now.failures):
            return Verdict(outcome)
        used = restarts.Used(*(self._used or ()))
        decision = restarts.decide(self._plan, outcome.cause, sorted(now.matched), used, now.step())
        if decision.no_progress:
            outcome = report.without_progress(outcome)
        if not decision.again:
            return Verdict(outcome, None, decision.why)
        if not can_go_on:
            return Verdict(outcome, None, "not restarted: node 0 itself was taken away")
        self._used = decision.used
        return Verdict(outcome, decision)

    def note_restart(self, cause: Cause, decision: Decision, number: int) -> RestartSummary:
        """What reports say of the start `number` that is followed by another."""
        from . import restarts

        summary = restarts.summary(cause)
        self._restarts.append({**summary, "time": cause["time"], "decision": decision.why, "round": number})
        return self._restarts[-1]

    def report(self, verdict: Verdict, now: Attempt, started: float, ended: float) -> RunReport:
        """The content of report.json."""
        from ..failures import report

        times = {"started": started, "stopped": now.stopped_at, "ended": ended}
        return report.content(self._plan, verdict.outcome, now.ends, times, verdict.why, self._restarts)

    def _redactor(self) -> Redactor:
        """Made when something first fails."""
        if self._secrets is None:
            from ..spec import secrets

            self._secrets = secrets.redactor(self._plan, os.environ)
        return self._secrets
