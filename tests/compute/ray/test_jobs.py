"""What is made of the log of a job that goes by Ray's job submission API, without Ray."""

from __future__ import annotations

import json
from typing import Any

from jobsdk import command
from jobsdk.bootstrap.transport import stdout_relay
from jobsdk.compute.ray import jobs as ray_jobs
from jobsdk.planning.plan import make_plan
from jobsdk.runs.folder import RunFolder


class _Cluster:
    """Says that a job waits, and a moment later has lines of it."""

    def __init__(self) -> None:
        self._statuses = ["PENDING", "RUNNING"]

    def job(self, name: str) -> dict[str, Any]:
        return {"status": self._statuses.pop(0), "message": "waits for an agent"}

    def tail(self, name: str, lines: int) -> list[bytes]:
        events = stdout_relay.form("events", 0, b'{"t":1.5,"event":"started"}\n')
        return [b"@1 event " + json.dumps({"event": "allocated", "node": 0}).encode() + b"\n", b"@2 0 " + events]


def test_a_job_that_starts_while_it_is_looked_at_has_started() -> None:
    run = RunFolder.create("r")
    run.write_json("plan.json", make_plan(command(command="true"), name="r"))
    run.write_json("native.json", {"type": "ray"})
    run.write_json("ray.json", {"job": "r", "seen": 0})
    run.append_event("submitted")
    cluster: Any = _Cluster()
    for _ in range(2):
        ray_jobs._Look(cluster, run).take()
    assert run.recorded_state().status == "Running"
    assert [event["event"] for event in run.events()].count("queued") == 1
