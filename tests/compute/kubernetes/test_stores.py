"""Inputs and outputs in object stores, in pods that are real containers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from jobsdk import Input, MLClient, Output, command
from jobsdk.client.run import Run
from jobsdk.compute.kubernetes import run as kubernetes_run
from tests.compute.kubernetes.cluster import Cluster
from tests.compute.kubernetes.conftest import PATH, PYTHON, Configure
from tests.compute.kubernetes.server import ApiServer
from tests.compute.kubernetes.test_objects import check

#: Where pods see the folder that stands for a store.
STORE = "/mnt/store"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    (folder / "data").mkdir(parents=True)
    (folder / "data/a.txt").write_text("alpha\n")
    return folder


def run_of(text: str, **given: object) -> Run:
    inputs = {"data": Input(path=f"local://{STORE}/data")}
    job = command(command=text, inputs=inputs, instance_count=2, compute="cluster", **given)
    return MLClient().jobs.create_or_update(job).wait(200)


def logs(run: Run) -> list[str]:
    return [(run.folder.logs / f"node-{node}/rank-{node}.log").read_text() for node in range(2)]


def mounted(store: Path) -> dict[str, object]:
    return {"mount": STORE, "host_path": str(store)}


def test_each_pod_fetches_and_uploads_to_a_place_of_its_own(
    cluster: Cluster, configure: Configure, store: Path
) -> None:
    configure(cluster, volumes=[*PYTHON, mounted(store)], env={"PATH": PATH})
    text = "cat ${{inputs.data}}/a.txt; echo $RANK > ${{outputs.model}}/rank-$RANK.txt"
    run = run_of(text, outputs={"model": Output(path=f"local://{STORE}/models")})
    assert run.status == "Completed", run.report
    assert logs(run) == ["alpha\n", "alpha\n"]
    assert (store / "models/rank-0.txt").read_text() == "0\n"
    assert (store / "models/node-1/rank-1.txt").read_text() == "1\n"
    uploaded = [event for event in run.folder.events() if event["event"] == "output_uploaded"]
    assert {(one["node"], one["files"]) for one in uploaded} == {(0, 1), (1, 1)}


def test_an_image_without_the_package_is_said_with_its_python(
    cluster: Cluster, configure: Configure, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(cluster, volumes=[mounted(store)])
    monkeypatch.setattr(kubernetes_run, "_PATIENCE_S", 1.0)
    run = run_of("cat ${{inputs.data}}/a.txt")
    assert run.status == "Failed"
    assert f"python3 has no fsspec, which local://{STORE}/data needs" in run.report["cause"]["message"]
    assert "Fix: pip install fsspec in the job's image or environment" in run.report["cause"]["message"]


def test_another_image_fetches_for_an_image_without_the_package(
    cluster: Cluster, configure: Configure, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    package = tmp_path / "fsspec"
    shutil.copytree(Path(fsspec.__file__).parent, package, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    with cluster.image_with(package) as image:
        configure(cluster, volumes=[mounted(store)], fetch_image=image, run_as_user=1000)
        run = run_of(
            "cat ${{inputs.data}}/a.txt a.txt > outputs/b.txt; cat outputs/b.txt", code=f"local://{STORE}/data"
        )
        assert run.status == "Completed", run.report
        assert logs(run) == ["alpha\n" * 2] * 2
        (store / "data/a.txt").unlink()
        # Node 0 may end before the other has found it; that one then waits for it in vain.
        monkeypatch.setattr(kubernetes_run, "_PATIENCE_S", 1.0)
        failed = run_of("cat ${{inputs.data}}/a.txt")
    assert failed.status == "Failed"
    assert f"input data: there is no local://{STORE}/data. Fix: correct the URL" in failed.report["cause"]["message"]


def test_only_a_job_with_such_inputs_gets_the_container_that_fetches(server: ApiServer, configure: Configure) -> None:
    configure(server, fetch_image="fetcher:1", cpu=2, gpus_per_node=8)

    def pod(**given: Any) -> dict[str, Any]:
        spec = MLClient().jobs.compile(command(command="true", compute="cluster", **given), name="run").spec
        check(spec["objects"])
        found: dict[str, Any] = spec["objects"][-1]["spec"]["template"]["spec"]
        return found

    (first,) = pod(inputs={"data": Input(path="s3://b/data")})["initContainers"]
    (main,) = pod()["containers"]
    assert (first["name"], first["image"], first["command"][-2:]) == ("fetch", "fetcher:1", ["fetch", "/jobsdk/run"])
    assert first["resources"] == {"requests": {"cpu": "2"}}
    assert (first["volumeMounts"], first["env"]) == (main["volumeMounts"], main["env"])
    for given in ({}, {"inputs": {"data": Input(path="s3://b/data", mode="direct")}}):
        assert "initContainers" not in pod(**given)
