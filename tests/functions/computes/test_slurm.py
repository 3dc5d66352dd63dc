from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsdk.compute.slurm.compute import SlurmCompute
from jobsdk.runs.refresh import Pace
from tests.compute.slurm.cluster import SlurmCluster
from tests.functions.computes import check

pytestmark = [pytest.mark.engine("slurm")]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), 2) as cluster:
        yield cluster


def test_functions_on_slurm(slurm: SlurmCluster, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(SlurmCompute, "pace", Pace(0.1, 0.3))
    (work / "computes.yml").write_text("computes: {cluster: {type: slurm}}")
    check("cluster")
