"""What a run is made of, by what its folder says."""

from __future__ import annotations

from typing import Any

from jobsdk.bootstrap.spec.plan import Plan
from jobsdk.job.command import CommandJob
from jobsdk.job.io import Input, Output
from jobsdk.planning.plan import make_plan
from jobsdk.runs import provenance
from jobsdk.runs.folder import RunFolder

NODE = {"system": "Linux 6.1", "cores": 64, "memory": 1 << 40, "gpus": ["H100", "H100"], "driver": "550.54"}


def plan(**fields: Any) -> Plan:
    return make_plan(CommandJob(**fields), name="run")


def test_the_command_has_the_values_of_its_inputs() -> None:
    job = plan(
        command="python t.py --lr ${{inputs.lr}} --data ${{inputs.data}}/x $[[--n ${{inputs.n}}]] > ${{outputs.model}}",
        inputs={"lr": 0.1, "data": Input(path="s3://bucket/d"), "n": Input(type="integer", optional=True)},
        outputs={"model": Output()},
    )
    assert provenance.rendered_command(job) == "python t.py --lr 0.1 --data s3://bucket/d/x  > ${{outputs.model}}"


def test_a_run_that_says_little_has_little() -> None:
    run = RunFolder.create("old")
    run.update_facts({"command": "echo", "host": "h"})
    found = provenance.of_run(run)
    assert found == provenance.Provenance("echo", {}, None, "h", None, None, None, ())
    assert found.summary() == {"inputs": {}, "git": None, "submitted": "h", "python": None, "machines": None}


def test_the_latest_machine_and_python_of_each_node_count() -> None:
    run = RunFolder.create("two")
    run.update_facts({"user": "ann", "host": "laptop", "cwd": "/w", "jobsdk": "1.0"})
    python = {"version": "3.12.1", "executable": "/p", "packages": {"numpy": "2.0", "torch": "2.13.0"}}
    run.append_event("node_joined", node=0, host="a", pid=1)
    run.append_event("node_joined", node=1, host="b", pid=1)
    run.append_event("inventory", node=1, **NODE)
    run.append_event("inventory", node=0, **NODE, python=python)
    run.append_event("node_joined", node=1, host="c", pid=1)
    run.append_event("inventory", node=1, **{**NODE, "gpus": [], "driver": None})
    found = provenance.of_run(run)
    assert [(one.node, one.host, one.gpus) for one in found.machines] == [(0, "a", ("H100", "H100")), (1, "c", ())]
    summary = found.summary()
    assert summary["python"] == "3.12.1 (/p), torch 2.13.0, 2 packages"
    assert summary["machines"] == (
        "1 node: 2 x H100, driver 550.54, 64 cores, 1 TiB, Linux 6.1; 1 node: 64 cores, 1 TiB, Linux 6.1"
    )
    assert summary["submitted"] == "ann@laptop from /w, jobsdk 1.0"
    assert found.to_dict()["python"]["packages"] == python["packages"]
