"""`jobsdk job timeline`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .conftest import Jobsdk


def test_the_phases_of_a_run(jobsdk: Jobsdk) -> None:
    jobsdk("job", "create", "-f", "job.yml", "--name", "timed", "--set", "resources.instance_count=2", "--stream")
    shown = jobsdk("job", "timeline", "timed")
    assert shown.code == 0
    assert shown.out.splitlines()[0].startswith("submit ")
    assert "slowest node: " in shown.out
    found = json.loads(jobsdk("job", "timeline", "timed", "-o", "json").out)
    assert found["run"] == "timed"
    assert found["is_over"]
    assert abs(sum(phase["seconds"] for phase in found["phases"]) - found["seconds"]) < 0.001
    assert found["unattributed"] == 0


def test_a_report_that_cannot_be_written_says_where_it_can(jobsdk: Jobsdk) -> None:
    jobsdk("job", "create", "-f", "job.yml", "--name", "told", "--wait")
    shown = jobsdk("job", "report", "told", "--html", "nowhere/x.html")
    assert shown.code == 2
    assert (
        "error: the report cannot be written to nowhere/x.html: No such file or directory. Fix: choose a path"
        in shown.err
    )


def test_a_run_that_has_reported_nothing(jobsdk: Jobsdk) -> None:
    jobsdk("job", "create", "-f", "job.yml", "--name", "silent", "--wait")
    shown = jobsdk("job", "metrics", "silent")
    assert shown.out.startswith("METRIC ")
    assert "nothing has been reported in run silent: jobsdk.train.report()" in shown.err
    assert jobsdk("job", "metrics", "silent", "-o", "csv").err == ""


def test_of_many_metrics_a_run_shows_some(jobsdk: Jobsdk, work: Path) -> None:
    report = "import jobsdk.train; jobsdk.train.report({'m%02d' % one: one for one in range(50)})"
    (work / "many.py").write_text(report)
    (work / "many.yml").write_text(f"command: {sys.executable} {work}/many.py\n")
    assert jobsdk("job", "create", "-f", "many.yml", "--name", "many", "--wait").code == 0
    shown = jobsdk("job", "show", "many").out
    assert "m19=19" in shown
    assert "m20" not in shown
    assert "50 in all: jobsdk job metrics many" in shown
    assert len(json.loads(jobsdk("job", "show", "many", "-o", "json").out)["metrics"]) == 50


@pytest.mark.parametrize("words", [["timeline", ""], ["show", "-n", ""], ["report", "", "--html", "x.html"]])
def test_an_empty_name_is_no_runs(jobsdk: Jobsdk, words: list[str]) -> None:
    shown = jobsdk("job", *words)
    assert shown.code == 2
    assert shown.err.startswith("error: there is no run named ''")


def test_a_run_that_there_is_not(jobsdk: Jobsdk) -> None:
    shown = jobsdk("job", "timeline", "nosuch")
    assert shown.code == 2
    assert "there is no run named 'nosuch'" in shown.err
