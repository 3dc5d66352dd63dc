"""Rows of the table on engines: the same script, on a real Slurm and in real containers, must give the same card."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from jobsdk import MLClient, PyTorchDistribution, command
from jobsdk.compute.kubernetes.compute import KubernetesCompute
from jobsdk.compute.slurm.compute import SlurmCompute
from jobsdk.runs import card
from jobsdk.runs.refresh import Pace
from tests import engines
from tests.bootstrap.runs import wait_for
from tests.chaos.fault import Fault
from tests.chaos.faults import FAULTS
from tests.chaos.harness import headline
from tests.compute.kubernetes.conftest import PATH, PYTHON, whole_cluster
from tests.compute.slurm.cluster import SlurmCluster

__all__ = ["whole_cluster"]  # a fixture

#: Rows whose fault is in the script alone.
ROWS = ["exit code", "missing module", "an error of one node's ranks"]


@pytest.fixture(scope="module")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), 2) as cluster:
        yield cluster


@pytest.fixture(
    params=[
        pytest.param("slurm", marks=pytest.mark.engine("slurm")),
        pytest.param("kubernetes", marks=pytest.mark.engine("containers")),
    ]
)
def engine(
    request: pytest.FixtureRequest, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Makes the engine the compute `engine`, whose nodes see `tmp_path`."""
    monkeypatch.setattr(KubernetesCompute, "pace", Pace(0.1, 0.3))
    monkeypatch.setattr(SlurmCompute, "pace", Pace(0.1, 0.3))
    if request.param == "slurm":
        cluster = request.getfixturevalue("slurm_cluster")
        for name, value in cluster.environ.items():
            monkeypatch.setenv(name, value)
        settings = {"type": "slurm"}
    else:
        pods = request.getfixturevalue("whole_cluster")
        pods.kubeconfig(home / "kubeconfig", pods.TOKEN)
        monkeypatch.setenv("KUBECONFIG", str(home / "kubeconfig"))
        volumes = [*PYTHON, {"mount": str(tmp_path), "host_path": str(tmp_path)}]
        settings = {"type": "kubernetes", "image": engines.IMAGE, "volumes": volumes, "env": {"PATH": PATH}}
    file = home / "config/jobsdk/computes.yml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump({"computes": {"engine": settings}}))
    yield request.param
    if request.param == "slurm":
        cluster.end_all_jobs()


def _row(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


@pytest.mark.parametrize("fault", [_row(name) for name in ROWS], ids=[name.replace(" ", "-") for name in ROWS])
def test_the_card_is_the_same(fault: Fault, engine: str, tmp_path: Path) -> None:
    work, told = tmp_path / "work", tmp_path / "told"
    work.mkdir()
    told.mkdir(mode=0o777)
    shutil.copy(Path(__file__).with_name("part.py"), work)
    (work / "train.py").write_text("from part import *\n" + fault.script)
    job = command(
        code=work,
        command=fault.command,
        distribution=PyTorchDistribution(process_count_per_instance=2),
        instance_count=2,
        environment_variables={"CHAOS": str(told), "CHAOS_JITTER": "0"},
        limits={"grace_period": 10},
        compute="engine",
    )
    run = MLClient().jobs.create_or_update(job)
    wait_for(lambda: all((told / f"up-0-{rank}").exists() for rank in range(4)) or run.state().is_terminal)
    (told / "go").touch()
    run.wait(200)
    report, cause = run.report, run.report["cause"]
    lines = card.render(report, run.name)
    assert re.search(fault.first_line, headline(lines)), json.dumps(report, indent=1)
    assert re.search(fault.card, "\n".join(lines))
    assert len(lines) <= 20
    came = report["status"], report["exit_code"], cause["class"], cause["node"]
    assert came == (fault.status, fault.exit_code, fault.kind, fault.node)
    assert cause["rank"] == fault.rank if fault.rank != -1 else cause["rank"] in (fault.ranks or range(4))
