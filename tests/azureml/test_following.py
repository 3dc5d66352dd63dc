"""What is made of the files and words of Azure ML's runs, without any service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jobsdk import Output, PyTorchDistribution, TensorFlowDistribution, command
from jobsdk.bootstrap.transport import stdout_relay
from jobsdk.compute.azureml import fetching, following
from jobsdk.compute.azureml.connection import Blob
from jobsdk.compute.azureml.failures import AzureError, Failure
from jobsdk.planning.plan import make_plan
from jobsdk.runs.folder import RunFolder

PREFIX = "ExperimentRun/dcid.r/"


class Service:
    """A service of one run: its details, and its logs, which grow."""

    def __init__(self, status: str = "Running") -> None:
        self.status, self.error = status, None
        self.logs: dict[str, bytes] = {}
        self.reads: list[tuple[str, int, int]] = []

    def details(self, name: str) -> dict[str, Any]:
        return {"status": self.status, "error": self.error, "startTimeUtc": "2026-01-02T03:04:05.1234567Z"}

    def job(self, name: str) -> dict[str, Any]:
        raise AzureError(Failure("gone", "there is no such thing"))

    def list_blobs(self, datastore: str, prefix: str) -> list[Blob]:
        return [Blob(PREFIX + name, len(data), False, 1.0) for name, data in self.logs.items()]

    def read_blob(self, datastore: str, name: str, begin: int, size: int) -> bytes:
        self.reads.append((name.removeprefix(PREFIX), begin, size))
        return self.logs[name.removeprefix(PREFIX)][begin : begin + size]


def run_of(distribution: Any, nodes: int = 2, **place: Any) -> RunFolder:
    job = command(command="true", distribution=distribution, instance_count=nodes, outputs={"model": Output()})
    run = RunFolder.create("r")
    run.write_json("plan.json", make_plan(job, name="r"))
    run.write_json(following.PLACE, {"artifacts": ["workspaceartifactstore", PREFIX], "launcher": "native", **place})
    run.append_event("submitted", by=1)
    return run


def look(service: Service, run: RunFolder) -> None:
    following.Look(service, run, run.read_json(following.PLACE)).take()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("user_logs/std_log.txt", (0, None, 0, False)),
        ("user_logs/std_log_0.txt", (0, None, 0, False)),
        ("user_logs/std_log_process_3.txt", (0, None, 3, False)),
        ("user_logs/std_log_process_012.txt", (0, None, 12, False)),
        ("user_logs/std_log_worker_1.txt", (0, "worker", 1, False)),
        ("user_logs/std_log_ps_0.txt", (0, "ps", 0, False)),
        ("user_logs/std_log_ps.txt", (0, "ps", 0, False)),
        ("user_logs/retry_002/std_log_process_1.txt", (2, None, 1, False)),
        ("user_logs/mpi_log.txt", (0, None, 0, True)),
        ("user_logs/other.txt", None),
        ("system_logs/cs_capability.log", None),
    ],
)
def test_names_of_logs(name: str, facts: tuple[Any, ...] | None) -> None:
    found = [log[1:5] for log in following.logs_of([Blob(PREFIX + name, 1, False, 0.0)], PREFIX)]
    assert found == ([] if facts is None else [facts])


def test_roles_of_tensorflow() -> None:
    run = run_of(TensorFlowDistribution(worker_count=2, parameter_server_count=1))
    service = Service()
    service.logs = {f"user_logs/std_log_{name}.txt": name.encode() for name in ("worker_0", "worker_1", "ps_0")}
    look(service, run)
    found = {path.relative_to(run.logs).as_posix(): path.read_text() for path in run.logs.rglob("*.log")}
    assert sorted(found.values()) == ["ps_0", "worker_0", "worker_1"]
    assert found["node-0/rank-0.log"] == "worker_0"


def test_only_what_is_new_is_read() -> None:
    run, service = run_of(PyTorchDistribution(process_count_per_instance=1)), Service()
    service.logs = {"user_logs/std_log_process_0.txt": b"one\n", "user_logs/std_log_process_1.txt": b""}
    look(service, run)
    look(service, run)
    service.logs["user_logs/std_log_process_0.txt"] += b"two\n"
    service.logs["user_logs/std_log_process_1.txt"] += b"other\n"
    look(service, run)
    assert sorted(service.reads) == [
        ("user_logs/std_log_process_0.txt", 0, 4),
        ("user_logs/std_log_process_0.txt", 4, 4),
        ("user_logs/std_log_process_1.txt", 0, 6),
    ]
    assert (run.logs / "node-0/rank-0.log").read_text() == "one\ntwo\n"
    assert (run.logs / "node-1/rank-1.log").read_text() == "other\n"


def test_states() -> None:
    run, service = run_of(None, 1), Service("NotStarted")
    seen = []
    for service.status in ("NotStarted", "Queued", "Provisioning", "Preparing", "Starting", "Running", "Finalizing"):
        look(service, run)
        seen.append(run.recorded_state().status)
    assert seen == ["Queued", "Queued", "Preparing", "Preparing", "Starting", "Running", "Running"]
    assert run.recorded_state().started == 1767323045.1235
    service.status = "Completed"
    look(service, run)
    state = run.recorded_state()
    assert (state.status, state.exit_code, run.report()["status"]) == ("Completed", 0, "Completed")


def test_a_job_that_starts_while_it_is_looked_at_has_started() -> None:
    run, service = run_of(PyTorchDistribution(process_count_per_instance=1), launcher="bootstrap"), Service("Queued")
    service.logs = {"user_logs/std_log_process_0.txt": stdout_relay.form("events", 0, b'{"t":1.5,"event":"started"}\n')}
    look(service, run)
    assert run.recorded_state().status == "Running"


def test_a_job_that_starts_and_ends_between_two_looks_has_both_times() -> None:
    run, service = run_of(None, 1), Service("Completed")
    look(service, run)
    state = run.recorded_state()
    assert (state.status, state.started) == ("Completed", 1767323045.1235)


def test_a_job_that_azure_ml_starts_again_has_logs_of_its_own() -> None:
    run, service = run_of(PyTorchDistribution(process_count_per_instance=1)), Service()
    service.logs = {"user_logs/std_log_process_0.txt": b"before\n"}
    look(service, run)
    service.logs["user_logs/retry_001/std_log_process_0.txt"] = b"after\n"
    look(service, run)
    assert run.recorded_state().restarts == 1
    assert (run.logs / "node-0/rank-0.log").read_text() == "before\n"
    assert (run.logs / "node-0/rank-0.restart-1.log").read_text() == "after\n"
    service.status = "Completed"
    look(service, run)
    assert len(run.report()["restarts"]) == 1


def test_a_look_that_was_cut_short_is_repeated() -> None:
    run, service = run_of(PyTorchDistribution(process_count_per_instance=1)), Service()
    service.logs = {"user_logs/std_log_process_0.txt": b"one\n"}
    look(service, run)
    (run.path / "azureml-state.json").unlink()
    service.logs = {"user_logs/std_log_process_0.txt": b"one\ntwo\n"}
    look(service, run)
    assert (run.logs / "node-0/rank-0.log").read_text() == "one\ntwo\n"


def test_a_failure_of_a_native_run() -> None:
    run, service = run_of(PyTorchDistribution(process_count_per_instance=1)), Service("Failed")
    trace = "Traceback (most recent call last):\n  File 'train.py', line 1, in <module>\nValueError: no data\n"
    service.logs = {
        "user_logs/std_log_process_0.txt": b"working\n",
        "user_logs/std_log_process_1.txt": trace.encode(),
    }
    message = "Process 0 was terminated by the runtime due to failure in other processes"
    service.error = {"error": {"code": "UserError", "message": message}}  # type: ignore[assignment]
    look(service, run)
    assert run.recorded_state().status == "Failed"
    assert run.report()["cause"]["rank"] == 1


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("azureml://datastores/d/paths/a/b/", ("d", "a/b/")),
        ("azureml://datastores/d/ExperimentRun/dcid.r", ("d", "ExperimentRun/dcid.r")),
        (
            "azureml://subscriptions/s/resourcegroups/g/workspaces/w/datastores/d/paths/a",
            ("d", "a"),
        ),
        ("https://account.blob.core.windows.net/c/a", None),
        ("azureml:name:1", None),
    ],
)
def test_uris_of_datastores(uri: str, place: tuple[str, str] | None) -> None:
    assert following.parsed(uri) == place


def test_places_of_outputs() -> None:
    run = run_of(None, 1)
    default = "azureml://datastores/workspaceblobstore/paths/azureml/r/model/"
    assert fetching.places(run) == {"model": default}
    uri = "azureml://datastores/mine/paths/${{name}}/${{output_name}}"
    job: Mapping[str, Any] = {"name": "r", "properties": {"outputs": {"model": {"uri": uri}, "default": {"uri": "x"}}}}
    assert fetching.places(run, job) == {"model": "azureml://datastores/mine/paths/r/model"}


class Store:
    """A store of blobs."""

    def __init__(self, blobs: dict[str, bytes]) -> None:
        self.blobs = blobs

    def list_blobs(self, datastore: str, prefix: str) -> list[Blob]:
        return [Blob(name, len(data), False, 0.0) for name, data in self.blobs.items() if name.startswith(prefix)]

    def fetch_blob(self, datastore: str, name: str, path: str) -> None:
        if self.blobs[name] == b"broken":
            raise AzureError(Failure("network", "the connection was lost"))
        Path(path).write_bytes(self.blobs[name])


def test_a_tree_is_fetched_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    store: Any = Store({"a/x.txt": b"x", "a/b/y.txt": b"y", "ab/z.txt": b"z"})
    fetching.fetch_tree(store, "d", "a/", tmp_path / "out")
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"x.txt", "b/y.txt"}
    store.blobs["a/c.txt"] = b"broken"
    with pytest.raises(AzureError):
        fetching.fetch_tree(store, "d", "a", tmp_path / "again")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    fetching.fetch_tree(store, "d", "ab/z.txt", tmp_path / "one")
    assert (tmp_path / "one/z.txt").read_text() == "z"
    store.blobs["a/../../evil"] = b"x"
    with pytest.raises(Exception, match="leads out of its folder"):
        fetching.fetch_tree(store, "d", "a", tmp_path / "evil")


def test_what_is_kept_of_a_job() -> None:
    services = {"Studio": {"endpoint": "https://ml.azure.com/runs/r", "jobServiceType": "Studio"}, "x": None}
    job = {"name": "r", "properties": {"services": services, "experimentName": "e", "outputs": None}}
    facts = following.facts_of(json.loads(json.dumps(job)))
    assert facts["artifacts"] == ["workspaceartifactstore", PREFIX]
    assert facts["studio_url"] == "https://ml.azure.com/runs/r"
