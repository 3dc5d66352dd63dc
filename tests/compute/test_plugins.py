"""A type of compute that only an entry point names is treated as those that jobsdk brings."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from jobsdk import MLClient, command
from jobsdk import compute as computes
from jobsdk.doctor import plan_preflight

MODULE = """
from jobsdk.plugin import Compute


class PlugCompute(Compute):
    type = "plug"
    takes_job_settings = True
    calls = []

    @classmethod
    def job_mistakes(cls, own):
        return [(name, "is no setting of a job") for name in own if name != "queue"]

    def findings(self, job, plan, at, *, build_env=False):
        return []

    def compile(self, job, plan, at, *, in_place=False, build_env=False):
        return {"compute": self.name, "type": self.type, "code": None}

    def prepare(self, spec, warn): ...
    def submit(self, spec, run, warn): ...
    def cancel(self, run, by): ...
    def refresh(self, run): ...

    def bring_all(self, most, wanted, *, is_of_target):
        self.calls.append(("bring_all", self.name, is_of_target))

    def use_bootstrap(self, job):
        self.calls.append(("use_bootstrap", self.name))
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the type `plug` was called for; the compute `mine` is one."""
    (tmp_path / "jobsdk_plug.py").write_text(MODULE)
    about = tmp_path / "jobsdk_plug-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: jobsdk-plug\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[jobsdk.compute]\nplug = jobsdk_plug:PlugCompute\n")
    (tmp_path / "computes.yml").write_text("computes:\n  mine: {type: plug}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    made: Any = computes.type_of("plug")
    yield made.calls
    sys.modules.pop("jobsdk_plug")


def warned(own: Mapping[str, Any], compute: str) -> list[str]:
    job = command(command="x", compute=compute)
    job.resources.properties = dict(own)
    return [str(finding) for finding in MLClient().jobs.validate(job).findings]


def test_its_settings_in_a_job_are_judged_on_every_compute(calls: list[Any]) -> None:
    assert warned({"plug": {"queue": "a"}}, "local") == []
    (words,) = warned({"plug": {"qeue": "a"}}, "local")
    assert "resources.properties.plug.qeue: is no setting of a job" in words
    (words,) = warned({"plugg": {}}, "local")
    assert "has no effect on the compute local" in words
    assert "did you mean 'plug'?" in words


def test_runs_of_others_are_brought_when_they_are_listed(calls: list[Any]) -> None:
    MLClient().jobs.list(compute="mine")
    assert calls == [("bring_all", "mine", True)]


def test_a_preflight_asks_it_for_the_bootstrap(calls: list[Any]) -> None:
    plan_preflight(command(command="x", compute="mine"))
    assert calls == [("use_bootstrap", "mine")]
