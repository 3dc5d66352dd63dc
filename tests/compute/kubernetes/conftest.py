from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobsdk import MLClient, PyTorchDistribution, command
from jobsdk.client.run import Run
from jobsdk.compute.kubernetes import run as kubernetes_run
from jobsdk.compute.kubernetes.compute import KubernetesCompute
from jobsdk.runs.refresh import Pace
from tests import engines
from tests.compute.kubernetes import cluster as clusters
from tests.compute.kubernetes.pods import RUN, Pods
from tests.compute.kubernetes.server import ApiServer
from tests.needs import needs

#: What the ranks need of this machine: Python, and the environment with torch and all else.
PYTHON = [{"mount": path, "host_path": path, "read_only": True} for path in (sys.prefix, sys.base_prefix)]
PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"

Configure = Callable[..., None]


@pytest.fixture
def configure(home: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Make `cluster` a compute with such settings, whose kubeconfig leads to a server."""

    def write(server: ApiServer, token: str = ApiServer.TOKEN, **settings: Any) -> None:
        server.kubeconfig(home / "kubeconfig", token)
        monkeypatch.setenv("KUBECONFIG", str(home / "kubeconfig"))
        settings = {"type": "kubernetes", "image": engines.IMAGE, **settings}
        settings = {name: value for name, value in settings.items() if value is not None}
        write_computes(home, settings)

    return write


def write_computes(home: Path, settings: dict[str, Any]) -> None:
    file = home / "config/jobsdk/computes.yml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump({"computes": {"cluster": settings}}))


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """An API server behind which nothing happens but what the test does."""
    with ApiServer() as one:
        yield one


@pytest.fixture
def pods(server: ApiServer) -> Pods:
    return Pods(server)


@pytest.fixture
def submit(server: ApiServer, configure: Configure) -> Callable[..., Run]:
    def run(settings: dict[str, Any] | None = None, **fields: Any) -> Run:
        configure(server, **(settings or {}))
        given = {"command": "hostname", "instance_count": 2, "distribution": PyTorchDistribution(), **fields}
        return MLClient().jobs.create_or_update(command(compute="cluster", **given), name=RUN)

    return run


@pytest.fixture(scope="session")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[clusters.Cluster]:
    needs("containers")
    with clusters.Cluster(tmp_path_factory.mktemp("cluster")) as one:
        yield one


@pytest.fixture
def cluster(
    whole_cluster: clusters.Cluster, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> Iterator[clusters.Cluster]:
    """A cluster on which jobs run, and the compute `cluster` that leads to it."""
    monkeypatch.setattr(KubernetesCompute, "pace", Pace(0.1, 0.3))
    monkeypatch.setattr(kubernetes_run, "_PATIENCE_S", 200.0)  # containers that end may take their time here
    configure(whole_cluster, volumes=PYTHON, env={"PATH": PATH})
    yield whole_cluster
    errors, whole_cluster.errors = whole_cluster.errors, []
    assert not errors


_CONTAINERS = pytest.param("containers", marks=pytest.mark.engine("containers"))


@pytest.fixture(params=[_CONTAINERS, pytest.param("real", marks=pytest.mark.cluster)])
def anywhere(request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compute `cluster` on the cluster of the tests' own, and on the real one that KUBECONFIG_TEST leads to.

    There, JOBSDK_TEST_IMAGE is an image with Python, and JOBSDK_TEST_NAMESPACE a namespace where jobs may be run.
    """
    if request.param == "containers":
        request.getfixturevalue("cluster")
        return
    monkeypatch.setenv("KUBECONFIG", os.environ["KUBECONFIG_TEST"])
    monkeypatch.setattr(KubernetesCompute, "pace", Pace(0.5, 2.0))
    settings = {"type": "kubernetes", "image": os.environ.get("JOBSDK_TEST_IMAGE", "python:3.12-slim")}
    if os.environ.get("JOBSDK_TEST_NAMESPACE"):
        settings["namespace"] = os.environ["JOBSDK_TEST_NAMESPACE"]
    write_computes(home, settings)
