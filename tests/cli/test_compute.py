from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from jobsdk import compute as computes
from jobsdk.cli import main
from jobsdk.compute.base import Check
from jobsdk.compute.local import LocalCompute

from .conftest import Jobsdk


def test_add_then_show_then_use(jobsdk: Jobsdk, work: Path) -> None:
    words = ["--set", "preload=[torch]", "--set", "network.interface=lo", "--set", "network.variables={A: b}"]
    done = jobsdk("compute", "add", "mine", "--type", "local", *words)
    assert (done.code, done.out) == (0, f"{work / 'computes.yml'}: added mine\n")
    found = json.loads(jobsdk("compute", "show", "mine", "-o", "json").out)
    assert found["settings"] == {"preload": ["torch"], "network": {"interface": "lo", "variables": {"A": "b"}}}
    lines = jobsdk("compute", "show", "mine").out.splitlines()
    (preload,) = [line for line in lines if line.startswith("preload ")]
    assert preload.split(None, 2) == ["preload", '["torch"]', "modules that each node imports once, for jobs that do "
                                      "not say it themselves"]  # fmt: skip
    assert jobsdk("job", "validate", "-f", "job.yml", "--compute", "mine").code == 0


def test_what_is_secret_in_settings_is_not_shown(jobsdk: Jobsdk, work: Path) -> None:
    lake = "{type: spark, master: yarn, conf: {spark.ssl.keyPassword: hunter2, spark.executor.memory: 8g}}"
    gate = '{type: ray, address: "http://head:8265", headers: {Authorization: Basic hunter2}}'
    (work / "computes.yml").write_text(f"computes: {{lake: {lake}, gate: {gate}}}\n")
    for words in (["list", "-o", "json"], *(["show", name, "-o", form] for name in ("lake", "gate")
                                            for form in ("table", "json", "yaml"))):  # fmt: skip
        done = jobsdk("compute", *words)
        assert (done.code, "hunter2" in done.out, "***" in done.out) == (0, False, True), done
    shown = json.loads(jobsdk("compute", "show", "lake", "-o", "json").out)["settings"]["conf"]
    assert shown == {"spark.ssl.keyPassword": "***", "spark.executor.memory": "8g"}


def test_add_for_the_user(jobsdk: Jobsdk, work: Path) -> None:
    (work / "computes.yml").write_text("computes: {mine: {type: local}}\n")
    done = jobsdk("compute", "add", "mine", "--type", "local", "--user")
    assert done.code == 0, done
    assert done.out == f"{computes.user_file()}: added mine\n"
    assert done.err == f"warning: {work / 'computes.yml'} has a compute mine, too: yours is used\n"
    assert json.loads(jobsdk("compute", "show", "mine", "-o", "json").out)["file"] == str(computes.user_file())


def test_add_says_what_is_wrong(jobsdk: Jobsdk, work: Path) -> None:
    done = jobsdk("compute", "add", "mine", "--type", "local", "--set", "prelod=torch")
    assert (done.code, "did you mean 'preload'?" in done.err) == (2, True)
    done = jobsdk("compute", "add", "mine", "--type", "local", "--set", "network=3", "--set", "network.gdr=true")
    assert (done.code, "network has a value of its own" in done.err) == (2, True)
    assert not (work / "computes.yml").exists()


def test_check_says_what_is_well_and_what_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compute", "check", "local"]) == 0
    assert "jobsdk doctor --compute local" in capsys.readouterr().out
    checks = [Check("partition gpu", True, "4 nodes idle"), Check("account", False, "no such account", "set account")]
    monkeypatch.setattr(LocalCompute, "check", lambda self: checks)
    assert main(["compute", "check", "local"]) == 1
    assert capsys.readouterr().out == (
        "ok     partition gpu: 4 nodes idle\nWRONG  account: no such account\n       Fix: set account\n"
    )
    assert main(["compute", "check", "local", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["checks"][1] == {
        "what": "account", "is_well": False, "found": "no such account", "fix": "set account",
    }  # fmt: skip
    monkeypatch.setattr(LocalCompute, "check", lambda self: checks[:1])
    assert main(["compute", "check", "local"]) == 0


def test_machines(jobsdk: Jobsdk, work: Path) -> None:
    (work / "computes.yml").write_text("machines: {rack-a: {gpus: 4, gpu: V100, gpu_memory: 16}}\n")
    rows = [line.split() for line in jobsdk("compute", "machines").out.splitlines()]
    assert ["Standard_NC24r", "4", "K80", "12", "24", "224", "56", "(no", "SR-IOV)"] in rows
    assert rows[-1] == ["rack-a", "4", "V100", "16"]
    one = json.loads(jobsdk("compute", "machines", "nc24S_v3", "-o", "json").out)
    assert (one["gpus"], one["infiniband"], one["with_infiniband"]) == (4, 0, "Standard_NC24rs_v3")
    assert jobsdk("compute", "machines", "rack-a").out.splitlines()[-1].split()[1] == "Standard_NC24rs_v3"
    wrong = jobsdk("compute", "machines", "ND96isr_H10_v5")
    assert (wrong.code, "did you mean 'Standard_ND96isr_H100_v5'?" in wrong.err) == (2, True)


def test_a_type_that_cannot_be_used_here_is_told(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "computes.yml").write_text("computes: {k: {type: kubernetes}}\n")
    monkeypatch.setitem(sys.modules, "jobsdk.compute.kubernetes.compute", None)
    assert main(["compute", "show", "k"]) == 2
    assert "the compute type kubernetes cannot be used here" in capsys.readouterr().err
    assert main(["compute", "list"]) == 0, "the others are listed all the same"
