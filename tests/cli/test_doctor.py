from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Jobsdk


def test_this_machine_in_lines(jobsdk: Jobsdk) -> None:
    result = jobsdk("doctor")
    lines = result.out.splitlines()
    assert all(line.split()[0] in ("ok", "warning", "problem", "to") for line in lines[:-1]), result
    assert "problem" in lines[-1] or "warning" in lines[-1]
    assert result.code == (1 if any(line.startswith("problem") for line in lines) else 0)


def test_this_machine_as_json(jobsdk: Jobsdk) -> None:
    findings = json.loads(jobsdk("doctor", "-o", "json").out)["findings"]
    assert {"level", "subject", "text", "fix"} == set(findings[0])
    assert all(one["fix"] for one in findings if one["level"] != "ok")


def test_a_problem_gives_exit_code_1(jobsdk: Jobsdk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JOBSDK_HOME", str(tmp_path / "file/home"))
    result = jobsdk("doctor")
    assert result.code == 1
    assert "to do: set JOBSDK_HOME to another folder" in result.out


def test_the_nodes_of_a_job(jobsdk: Jobsdk) -> None:
    result = jobsdk("doctor", "--job", "job.yml", "--nodes", "3")
    assert result.code == 0, result
    assert "3 nodes: connect matrix 6/6 ok" in result.out.splitlines()[-1]


def test_the_bandwidth_may_be_left_out(jobsdk: Jobsdk) -> None:
    assert "TCP between 2 nodes: " in jobsdk("doctor", "--nodes", "2").out
    assert "TCP between" not in jobsdk("doctor", "--nodes", "2", "--no-bandwidth").out


def test_nodes_of_a_compute_as_json(jobsdk: Jobsdk) -> None:
    result = jobsdk("doctor", "--compute", "local", "--nodes", "2", "-o", "json")
    found = json.loads(result.out)
    assert (result.code, sorted(found["nodes"])) == (0, ["0", "1"])
    assert found["run"] in jobsdk("job", "list").out


def test_a_job_whose_nodes_lack_gpus(jobsdk: Jobsdk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = jobsdk("doctor", "--job", "job.yml", "--set", "resources.gpus_per_process=1")
    assert result.code == 1
    assert "problem  the job takes 2 GPUs of a node, and node 0" in result.out


def test_a_job_that_could_not_be_submitted_is_told_as_ever(jobsdk: Jobsdk) -> None:
    assert jobsdk("doctor", "--job", "none.yml").code == 2
    assert "there is no compute 'nowhere'" in jobsdk("doctor", "--compute", "nowhere").err
    assert jobsdk("doctor", "--set", "name=x").code == 2


def test_a_preflight_that_cannot_begin_is_a_problem_with_its_reason(jobsdk: Jobsdk, work: Path) -> None:
    """A job that overwrites what the nodes find each other by: no result is left, and that is said."""
    with (work / "job.yml").open("a") as file:
        file.write("environment_variables: {AZ_BATCH_HOST_LIST: 'a,b,c'}\n")
    result = jobsdk("doctor", "--job", "job.yml")
    assert result.code == 1
    assert "problem  the preflight did not come to its end (Failed): rank 0" in result.out
    assert "to do: jobsdk job logs " in result.out
