"""Jobs in pods that are real containers, without ssh, each with a network address of its own."""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jobsdk import JobFailed, MLClient, Output, PyTorchDistribution, command
from jobsdk.client.run import Run
from jobsdk.compute.kubernetes.api import Api, connect
from jobsdk.runs.logs import View
from tests import engines
from tests.bootstrap.runs import wait_for
from tests.compute import collectives
from tests.compute.kubernetes.cluster import Cluster
from tests.compute.kubernetes.conftest import PATH, PYTHON, Configure

_IP_FREEBIND = 15  # <linux/in.h>
TWO_EACH = PyTorchDistribution(process_count_per_instance=2)


def submit(text: str, **fields: Any) -> Run:
    given = {"instance_count": 2, "distribution": TWO_EACH, "compute": "cluster", **fields}
    return MLClient().jobs.create_or_update(command(command=text, **given))


def log(run: Run, rank: int, node: int) -> str:
    return (run.folder.logs / f"node-{node}/rank-{rank}.log").read_text()


def name_of(run: Run) -> str:
    name: str = run.folder.read_json("kubernetes.json")["name"]
    return name


def api() -> Api:
    return connect(None, os.environ.get("JOBSDK_TEST_NAMESPACE"))


def test_a_user_who_is_not_root_on_a_read_only_file_system(cluster: Cluster, configure: Configure) -> None:
    """As a namespace with Pod Security `restricted` has it: all that jobsdk writes is in volumes."""
    configure(cluster, run_as_user=1000, read_only_root=True)
    capabilities = "grep CapEff /proc/self/status | cut -f 2"
    run = submit(f"id -u; {capabilities}; touch /tmp/$RANK && echo tmp; touch /here 2>&1 | grep -c Read-only").wait(200)
    assert run.status == "Completed", run.report
    for rank in range(4):
        assert log(run, rank, rank // 2) == "1000\n0000000000000000\ntmp\n1\n"
    assert run.metrics == {}


def test_other_containers_variables_and_a_volume_of_the_run(cluster: Cluster, configure: Configure) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "hub"}, "data": {"token": "c3dvcmRmaXNo"}}
    modes = {"kind": "ConfigMap", "metadata": {"name": "modes"}, "data": {"SPEED": "fast"}}
    for one in (secret, modes):
        cluster.store.create("jobs", {"apiVersion": "v1", **one})
    beside = ["sh", "-c", "mkfifo /shared/f; cat /shared/f"]
    configure(
        cluster,
        volumes=[*PYTHON, {"mount": "/shared", "empty_dir": "1Gi"}, {"mount": "/scratch", "size": "1Gi"}],
        env={"PATH": PATH, "SECRET_WORD": {"secret": "hub", "key": "token"}},
        env_from=[{"config_map": "modes", "prefix": "MY_"}],
        init_containers=[{"name": "warm", "image": engines.IMAGE, "command": ["sh", "-c", "echo warm > /shared/warm"]}],
        sidecars=[{"name": "beside", "image": engines.IMAGE, "command": beside}],
    )
    wait = "until [ -p /shared/f ]; do sleep 0.1; done"
    run = submit(f"cat /shared/warm; {wait}; echo ${{#SECRET_WORD}} $MY_SPEED; touch /scratch/$RANK").wait(200)
    assert run.status == "Completed", run.report
    for rank in range(4):
        assert log(run, rank, rank // 2) == "warm\n9 fast\n"
    folder = cluster.claim(f"{name_of(run)}-volume-{len(PYTHON) + 1}")
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1", "2", "3"]


def test_an_init_container_that_fails_is_named(cluster: Cluster, configure: Configure) -> None:
    failing = {"name": "warm", "image": engines.IMAGE, "command": ["sh", "-c", "exit 7"]}
    configure(cluster, init_containers=[failing], volumes=PYTHON, env={"PATH": PATH})
    run = submit("hostname")
    run.wait(200)
    assert (run.status, run.exit_code) == ("Failed", 126)
    assert run.report["message"].endswith("cannot start: the init container warm ended with code 7")


@pytest.mark.usefixtures("anywhere")
def test_two_nodes_with_code_and_secrets() -> None:
    Path("src").mkdir()
    text = (
        "import os; print(os.getcwd(), os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], len(os.environ['MY_TOKEN']))"
    )
    Path("src/main.py").write_text(text)
    run = submit("python3 main.py", code="src", environment_variables={"MY_TOKEN": "swordfish-1234"}).wait(200)
    assert run.status == "Completed", run.report
    for rank in range(4):
        assert log(run, rank, rank // 2) == f"/jobsdk/run/code {rank} of 4 14\n"
    left = api().list("Secret", labelSelector=f"jobsdk/job={name_of(run)}")
    assert left == []
    api().delete("Job", name_of(run))


@pytest.mark.usefixtures("anywhere")
def test_the_first_that_fails_gives_card_and_code() -> None:
    run = submit("command -v sshd; [ $RANK = 3 ] && echo no more data && exit 7; exec sleep 600")
    with pytest.raises(JobFailed, match="rank 3 on node 1 exited with code 7"):
        run.wait(200).result()
    assert log(run, 3, 1) == "no more data\n", "the image has no sshd"
    assert (run.status, run.exit_code) == ("Failed", 7)
    assert [one["rank"] for one in run.report["ranks"] if one["exit_code"] == 7] == [3]
    wait_for(lambda: api().get("Job", name_of(run)).get("status", {}).get("conditions"))
    pods = api().list("Pod", labelSelector=f"jobsdk/job={name_of(run)}")
    codes = [one["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for one in pods]
    assert codes == [7, 7], "every pod keeps the culprit's code"
    api().delete("Job", name_of(run))


@pytest.mark.usefixtures("anywhere")
def test_cancel_ends_the_pods() -> None:
    run = submit("echo begun; exec sleep 600")
    file = run.folder.logs / "node-1/rank-3.log"
    with run.target.following(run.folder, View()):
        wait_for(lambda: file.exists() and file.read_text() == "begun\n", 200)
    run.cancel()
    run.wait(200)
    assert (run.status, run.exit_code, run.report["cause"]) == ("Canceled", 130, None)
    assert file.read_text().startswith("begun\n")
    wait_for(lambda: not api().list("Job", labelSelector=f"jobsdk/job={name_of(run)}"), 200)


@pytest.mark.parametrize("kind", collectives.ON_HOSTS)
def test_all_ranks_add_up(kind: str, cluster: Cluster) -> None:
    collectives.check(collectives.job(kind, 2, "cluster"))


def test_a_rank_that_uses_too_much_memory_is_named(cluster: Cluster, configure: Configure) -> None:
    configure(cluster, volumes=PYTHON, env={"PATH": PATH}, memory="200Mi")
    hog = "import os\nif os.environ['RANK'] == '1': x = bytearray(400 << 20)\nimport time; time.sleep(600)"
    Path("src").mkdir()
    Path("src/hog.py").write_text(hog)
    run = submit("exec python hog.py", code="src", instance_count=1).wait(200)
    cause = run.report["cause"]
    assert (run.status, run.exit_code, cause["class"], cause["rank"]) == ("Failed", 137, "out_of_memory", 1)


def test_a_pod_that_is_killed_is_a_lost_node(cluster: Cluster) -> None:
    run = submit("echo begun; exec sleep 600")
    wait_for(lambda: run.status == "Running")
    cluster.kill(f"{name_of(run)}-1-00000")
    run.wait(200)
    assert (run.status, run.exit_code, run.report["cause"]["node"]) == ("Lost", 125, 1)


def test_a_pod_that_is_preempted_is_replaced_and_the_job_goes_on(cluster: Cluster) -> None:
    run = submit(
        "if [ $JOBSDK_RESTART_COUNT = 0 ]; then exec sleep 600; fi; echo start $JOBSDK_RESTART_COUNT",
        max_preemptions=1, restart_delay=0,
    )  # fmt: skip
    wait_for(lambda: run.status == "Running")
    name = name_of(run)
    cluster.disrupt(f"{name}-1-00000")
    run.wait(200)
    assert (run.status, run.exit_code) == ("Completed", 0), run.report
    assert (run.folder.logs / "node-1/rank-3.restart-1.log").read_text() == "start 1\n"
    # Node 0 has told the end; this pod may still be about to end.
    wait_for(lambda: cluster.store.get("Pod", "jobs", f"{name}-1-00001")["status"]["phase"] == "Succeeded")


def test_the_pod_of_a_machine_that_loses_power_is_replaced_and_the_job_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing ends the old pod: no kubelet reports it, and a Job waits for its pods to end before it replaces them."""
    monkeypatch.setattr("jobsdk.planning.plan.HEARTBEAT_S", 2.0)
    run = submit(
        "if [ $JOBSDK_RESTART_COUNT = 0 ]; then exec sleep 600; fi; echo start $JOBSDK_RESTART_COUNT",
        max_restarts=1, restart_delay=0,
    )  # fmt: skip
    wait_for(lambda: run.status == "Running")
    name = name_of(run)
    cluster.lose(f"{name}-1-00000")
    run.wait(200)
    assert (run.status, run.exit_code) == ("Completed", 0), run.report
    assert (run.folder.logs / "node-1/rank-3.restart-1.log").read_text() == "start 1\n"
    said = [one["message"] for one in run.folder.events() if one["event"] == "queued" and "answer" in one["message"]]
    assert said == [f"node 1 (machine machine-1) does not answer: its pod {name}-1-00000 is replaced"]
    api().delete("Job", name)


def test_a_jobset_with_shared_memory_and_outputs_on_a_volume(
    cluster: Cluster, configure: Configure, tmp_path: Path
) -> None:
    shared = tmp_path / "results"
    shared.mkdir()
    outputs = {"host_path": str(shared), "sub_path": "runs", "here": str(shared)}
    configure(cluster, jobset=True, shm_size="96Mi", outputs_volume=outputs)
    run = submit(
        "df -k /dev/shm | tail -n 1; echo of $RANK > ${{outputs.model}}/$RANK",
        outputs={"model": Output(type="uri_folder")},
    ).wait(200)
    assert run.exit_code == 0, run.report
    assert str(96 << 10) in log(run, 0, 0)
    model = Path(run.outputs.model.path)
    assert sorted(path.read_text() for path in model.iterdir()) == [f"of {rank}\n" for rank in range(4)]
    found = MLClient().jobs.download(run, download_path=tmp_path / "got", output_name="model")
    assert (found / "named-outputs/model/3").read_text() == "of 3\n"


@pytest.fixture
def shelf(tmp_path: Path, cluster: Cluster) -> Iterator[tuple[Path, str]]:
    """A folder, and the URL at which pods find what is in it."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    server = ThreadingHTTPServer((cluster.gateway(), 0), handler, bind_and_activate=False)
    server.socket.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)  # the address is there when a pod is
    server.server_bind()
    server.server_activate()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield folder, f"http://{server.server_address[0]}:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("how", ["code_url", "code_volume"])
def test_large_code_is_sent_once_and_checked(
    how: str, cluster: Cluster, configure: Configure, shelf: tuple[Path, str], tmp_path: Path
) -> None:
    folder, url = shelf
    settings: dict[str, Any] = {"code_url": {"upload": f"file://{folder}", "fetch": url}}
    if how == "code_volume":
        settings = {"code_volume": {"here": str(folder), "path": "/code"}, "volumes": [
            {"mount": "/code", "host_path": str(folder), "read_only": True}]}  # fmt: skip
    configure(cluster, **settings)
    Path("src").mkdir()
    Path("src/say.sh").write_text("echo here; wc -c < large\n")
    Path("src/large").write_bytes(b"x" * 900_000)
    times = []
    for _ in range(2 if how == "code_url" else 1):
        run = submit("sh say.sh", code="src", instance_count=1).wait(200)
        assert log(run, 0, 0) == "here\n900000\n", run.report
        times.append(sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir()))
    assert times[0] == times[-1]
    if how == "code_url":
        (archive,) = folder.glob("*.tar.gz")
        archive.write_bytes(archive.read_bytes()[:-1])
        run = submit("sh say.sh", code="src", instance_count=1).wait(200)
        assert run.exit_code == 126
        assert "its content has changed: the sha256 is" in run.report["message"]
