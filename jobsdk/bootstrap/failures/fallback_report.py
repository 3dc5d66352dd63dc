"""The end of a job that no coordinator could bring to its end: its report, written by who finds that out."""

from __future__ import annotations

import os
import socket
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Mapping, Optional, cast

from ..spec import events, exit_codes, mlflow_store, plan_file, secrets
from . import report

if TYPE_CHECKING:
    from ..spec.plan import Plan
    from ..spec.report import RankEnd, RunReport


def write_end(
    run_dir: str,
    plan: Plan,
    status: str,
    code: int,
    message: str,
    node: Optional[int],
    began: float,
    facts: Mapping[str, Any] = MappingProxyType({}),
    left: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write report.json and the event `ended`, unless the run has a report. `node` is the one to blame.

    A run that was to be cancelled (`status` "Canceled") has no cause. `facts` are further ones of the cause, such as
    its class; `left` is the report of a coordinator that was taken away: what became of the ranks is taken from it.
    """
    if os.path.exists(run_dir + "/report.json"):
        return
    message = secrets.redactor(plan, os.environ).text(message)
    cause = None
    if status != "Canceled":
        kind = "node_lost" if status == "Lost" else "bootstrap_error"
        record = {
            "node": node, "rank": None, "pid": None, "host": socket.gethostname(), "exit_code": code, "signal": None,
            "message": message, "class": kind, "t": time.time(),
        }  # fmt: skip
        cause = report.judged(plan, cast("RankEnd", {**record, **facts}))
        cause["ranks"] = []
    ended = time.time()
    content = report.content(
        plan, report.Outcome(status, code, message, cause), {},
        {"started": began, "stopped": None, "ended": ended}, "",
        [event["summary"] for event in events.of(run_dir, "restart")],
    )  # fmt: skip
    content.update(cast("RunReport", {key: left[key] for key in ("ranks", "others", "started") if key in left}))
    mlflow_store.finish(plan["run"], run_dir, status, ended)
    events.write_report(run_dir, content)
    plan_file.forget_secrets(run_dir)
    events.note(run_dir, "ended", status=status, exit_code=code, message=message)


CANCELLED = ("Canceled", exit_codes.CANCELED, "cancelled on request")
