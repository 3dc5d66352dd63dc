"""The events that node 0 writes to the run's stream: one method for each kind, with what readers find in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, cast

from ..spec import events, package_lists

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..failures.report import Outcome
    from ..spec.event import Facts
    from ..spec.messages import Inventory, Join, RankSaid, RankStarted, Start, Uploaded
    from ..spec.report import Cause, RankEnd, RestartSummary, RunReport
    from .restarts import Decision

_MOST_NAMED = 50  # missing nodes that an event names


class Journal:
    """Of one run. Times (`t`) are in seconds since 1970; where none is given, an event has the time of writing."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir

    def waiting(self, text: str, missing: List[int]) -> None:
        """Nodes are missing."""
        self._note("waiting", message=text, missing=missing[:_MOST_NAMED])

    def node_joined(self, node: int, message: Join) -> None:
        self._note("node_joined", node=node, host=message["host"], pid=message["pid"])

    def started(self, start: Start) -> None:
        """All nodes start."""
        address, port = start["addresses"][0], start["ports"][0][0]
        self._note("started", master_addr=address, master_port=port, restart=start["restart"])

    def rank_started(self, message: RankStarted) -> None:
        self._note("rank_started", t=message["t"], node=message["node"], rank=message["rank"], pid=message["pid"])

    def first_output(self, message: RankSaid) -> None:
        """A rank has written something."""
        self._note("first_output", t=message["t"], node=message["node"], rank=message["rank"])

    def metric(self, message: RankSaid) -> None:
        """A rank has reported something for the first time."""
        self._note("metric", t=message["t"], node=message["node"], rank=message["rank"])

    def rank_ended(self, message: RankEnd) -> None:
        """`stopped` is there where the rank was ended by the job itself."""
        facts = cast("Facts", _chosen(message, "t", "node", "rank", "exit_code", "signal"))
        if message.get("stopped"):
            facts["stopped"] = True
        self._note("rank_ended", **facts)

    def inventory(self, node: int, message: Inventory) -> None:
        """What a node has."""
        facts = cast("Facts", _chosen(message, *(key for key in message if key != "type")))
        facts["node"] = node
        python = facts.get("python")
        if python is not None and package_lists.share(self._run_dir, python["packages"]):
            facts["python"] = {"executable": python["executable"], "version": python["version"]}
        self._note("inventory", **facts)

    def warning(self, text: str, node: Optional[int] = None) -> None:
        facts: Facts = {"message": text} if node is None else {"node": node, "message": text}
        self._note("warning", **facts)

    def uploaded(self, node: int, message: Uploaded) -> None:
        """A node has copied an output, or a checkpoint in it, to its object store."""
        keys = [key for key in ("name", "url", "checkpoint", "files", "bytes", "seconds") if key in message]
        facts = cast("Facts", _chosen(message, *keys))
        facts["node"] = node
        self._note("output_uploaded", **facts)

    def failure(self, failure: RankEnd, words: str) -> None:
        """Something has failed, which may be the root cause or follow from it; `class` where no rank has said it."""
        facts = cast("Facts", {
            "t": failure["t"], "node": failure.get("node"), "rank": failure.get("rank"),
            "exit_code": failure["exit_code"], "message": words,
        })  # fmt: skip
        if "class" in failure:
            facts["class"] = failure["class"]
        self._note("failure", **facts)

    def stopping(self, reason: str, likely: Optional[str]) -> None:
        """All nodes stop; `likely` is what the report will most likely say."""
        self._note("stopping", reason=reason, message=likely or "")

    def restart(
        self, attempt: int, cause: Cause, decision: Decision, summary: RestartSummary, handed_over: bool
    ) -> None:
        """The job starts again as `attempt`; `handed_over` where another bootstrap of node 0 does that."""
        self._note("restart", restart=attempt, decision=decision.why, message=cause["message"], used=decision.used,
                   delay=decision.delay, summary=summary, handed_over=handed_over)  # fmt: skip

    def left(self, report: RunReport) -> None:
        """Node 0 was taken away; the report is its last word unless the engine has another."""
        self._note("left", report=report)

    def ended(self, outcome: Outcome) -> None:
        self._note("ended", status=outcome.status, exit_code=outcome.exit_code, message=outcome.message)

    def _note(self, event: str, **facts: Unpack[Facts]) -> None:
        events.note(self._run_dir, event, **facts)


def _chosen(message: Mapping[str, Any], *keys: str) -> Dict[str, Any]:
    return {key: message[key] for key in keys}
