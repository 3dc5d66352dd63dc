"""How runs end whose ranks Azure ML has started: the culprit is found in what they wrote."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsdk import PyTorchDistribution, TensorFlowDistribution, command
from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.spec.plan import Plan
from jobsdk.compute.azureml import verdict
from jobsdk.planning.plan import make_plan
from jobsdk.runs.card import render
from jobsdk.runs.folder import RunFolder

STOPPED = "The process was terminated by the runtime due to failure in other processes on the node\n"
ASSERT = """step 1
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    step(batch)
  File "train.py", line 3, in step
    raise ValueError("no such layer: 12")
ValueError: no such layer: 12
"""
LOST = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    dist.all_reduce(x)
RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.5]:3421
"""


def failed(code: int, log: str = "std_log_process_0.txt", **inner: Any) -> dict[str, Any]:
    """The error of a job as Azure ML writes it when a process has failed."""
    message = (
        f"Execution failed. User process '/opt/conda/bin/python' exited with status code {code}. "
        f"Please check log file 'user_logs/{log}' for error details. Error: Traceback"
    )
    return {"error": {"code": "UserError", "message": message, **inner}}


def said(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": "UserError", "message": "Job failed", "details": [{"code": code, "message": message}]}}


def judged(
    logs: dict[int, str],
    error: dict[str, Any] | None = None,
    status: str = "Failed",
    plan: Plan | None = None,
    events: tuple[str, ...] = (),
    name: str = "run",
    **more: Any,
) -> dict[str, Any]:
    """The report of a run of 2 x 2 ranks with these logs."""
    if plan is None:
        job = command(command="x", distribution=PyTorchDistribution(process_count_per_instance=2), instance_count=2)
        plan = make_plan(job, name="run")
    run = RunFolder.create(name)
    run.write_json("plan.json", plan)
    for event in events:
        run.append_event(event)
    for rank, text in logs.items():
        path = paths.rank_log(str(run.path), rank // 2, rank)
        (run.path / f"logs/node-{rank // 2}").mkdir(parents=True, exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    verdict.write(run, plan, status=status, error=error, **{"started": 1000.0, "ended": 1100.0, **more})
    state = run.recorded_state()
    report = run.report()
    assert (state.status, state.exit_code, state.ended) == (report["status"], report["exit_code"], report["ended"])
    assert all(len(line) <= 200 for line in render(report, "run"))
    return report


def test_a_job_that_has_completed() -> None:
    report = judged(dict.fromkeys(range(4), "done\n"), status="Completed")
    assert (report["status"], report["exit_code"], report["cause"]) == ("Completed", 0, None)
    assert [rank["exit_code"] for rank in report["ranks"]] == [0, 0, 0, 0]
    assert (report["started"], report["ended"]) == (1000.0, 1100.0)


@pytest.mark.parametrize("named", [0, 3])
def test_the_culprit_is_the_rank_whose_log_tells_why_and_not_the_one_that_azure_names(named: int) -> None:
    logs = {0: "step 1\n" + STOPPED, 1: LOST, 2: LOST, 3: ASSERT}
    report = judged(logs, failed(1, f"std_log_process_{named}.txt"))
    cause = report["cause"]
    assert (cause["rank"], cause["node"], cause["class"]) == (3, 1, "exception")
    assert cause["traceback"].endswith("ValueError: no such layer: 12")
    assert report["message"] == "rank 3 on node 1 exited with code 1: ValueError: no such layer: 12"
    assert report["others"] == [{"ranks": [1, 2], "what": "lost a peer"}, {"ranks": [0], "what": "killed by Azure ML"}]
    assert (report["status"], report["exit_code"]) == ("Failed", 1)


def test_a_rank_that_azure_has_seen_killed_is_a_victim_of_one_that_failed() -> None:
    report = judged({0: "step 1\n", 3: ASSERT}, failed(-9, "std_log_process_0.txt"))
    assert report["cause"]["rank"] == 3
    assert {"ranks": [0], "what": "killed by Azure ML"} in report["others"]


def test_what_azure_quotes_of_a_log_is_no_word_of_its_own() -> None:
    error = failed(1, "std_log_process_3.txt")
    error["error"]["message"] += ": RuntimeError: the node was preempted; quota; docker pull; exit code 9"
    assert judged({3: ASSERT}, error)["message"].startswith("rank 3 on node 1 exited with code 1: ValueError")


def test_ranks_with_one_error_are_one_cause() -> None:
    report = judged(dict.fromkeys(range(4), ASSERT), failed(1))
    assert report["cause"]["ranks"] == [0, 1, 2, 3]
    assert report["others"] == []


def test_the_earlier_of_two_failures_where_times_are_known() -> None:
    logs = {1: ASSERT.replace("12", "1"), 2: ASSERT.replace("12", "2").replace("ValueError", "KeyError")}
    report = judged(logs, failed(1), written={1: 1090.0, 2: 1080.0})
    assert report["cause"]["rank"] == 2
    assert report["cause"]["time"] == 1080.0


@pytest.mark.parametrize(
    ("code", "exit_code", "signal", "message"),
    [
        (7, 7, None, "rank 2 on node 1 exited with code 7"),
        (-11, 139, 11, "rank 2 on node 1 was killed by SIGSEGV: a segmentation fault"),
        (245, 139, 11, "rank 2 on node 1 was killed by SIGSEGV: a segmentation fault"),
        (137, 137, 9, "rank 2 on node 1 was killed by SIGKILL"),
    ],
)
def test_a_rank_that_wrote_no_error_ends_as_azure_says(
    code: int, exit_code: int, signal: int | None, message: str
) -> None:
    report = judged({2: "step 1\n"}, failed(code, "std_log_process_2.txt"))
    assert (report["exit_code"], report["cause"]["signal"]) == (exit_code, signal)
    assert report["message"] == message
    assert report["cause"]["last_lines"] == ["step 1"]


def test_logs_with_a_number_of_several_digits_and_of_roles() -> None:
    assert judged({2: "x\n"}, failed(7, "std_log_process_02.txt"))["cause"]["rank"] == 2


def test_logs_of_tensorflows_roles() -> None:
    distribution = TensorFlowDistribution(parameter_server_count=1, worker_count=2)
    plan = make_plan(command(command="x", distribution=distribution, instance_count=2), name="run")
    report = judged({}, failed(5, "std_log_worker_1.txt"), plan=plan)
    assert report["message"].startswith("rank 2 (worker 1) on node 1 exited with code 5")


def test_memory_that_was_used_up() -> None:
    error = failed(137, "std_log_process_1.txt", innerError={"code": "OutOfMemory", "message": "memory limit reached"})
    report = judged({1: "step 1\n", 2: LOST}, error)
    assert (report["cause"]["rank"], report["cause"]["class"]) == (1, "out_of_memory")
    assert report["message"].startswith("rank 1 on node 0 ran out of memory and was killed by SIGKILL")


@pytest.mark.parametrize(
    ("code", "message", "kind", "status", "exit_code"),
    [
        ("NodePreempted", "The node was preempted", "preempted", "Preempted", 143),
        ("JobTimeout", "The job exceeded the maximum run duration", "timeout", "TimedOut", 124),
        ("NodeFailure", "Node tvmps_1 became unusable", "node_lost", "Lost", 125),
        ("ComputeError", "Not enough quota: 48 cores are needed", "quota", "Failed", 126),
        ("ImageBuildFailure", "Failed to build image: conda solve", "image", "Failed", 126),
        ("DockerError", "failed to pull Docker image x.azurecr.io/y: unauthorized", "image", "Failed", 126),
        ("DataCapabilityError", "data-capability: failed to mount INPUT_data", "data_access", "Failed", 126),
        ("ServiceError", "InternalServerError", "service_error", "Failed", 1),
    ],
)
def test_what_only_the_service_knows(code: str, message: str, kind: str, status: str, exit_code: int) -> None:
    logs = {1: LOST} if status != "Failed" else {}
    report = judged(logs, said(code, message))
    assert (report["cause"]["class"], report["status"], report["exit_code"]) == (kind, status, exit_code)
    assert report["cause"]["advice"]


def test_words_of_the_service_do_not_hide_a_rank_that_says_why() -> None:
    report = judged({3: ASSERT}, said("ServiceError", "InternalServerError"))
    assert (report["cause"]["rank"], report["cause"]["class"]) == (3, "exception")


def test_a_job_that_could_not_begin_says_what_the_service_and_the_node_say() -> None:
    report = judged(
        {}, {"code": "Weird", "message": "something\nodd " + "x" * 1000}, said={0: "sh: python3: not found"}
    )
    assert report["cause"]["class"] == "bootstrap_error"
    assert report["exit_code"] == 126
    assert report["message"].startswith("Azure ML: something odd xxx")
    assert report["message"].endswith("...; node 0 said: sh: python3: not found")


@pytest.mark.parametrize("error", [None, {}, {"error": None}, {"error": "odd"}, {"details": "odd"}])
def test_a_failure_without_a_reason(error: Any) -> None:
    report = judged({0: "step\n"}, error)
    assert (report["status"], report["exit_code"]) == ("Failed", 1)
    assert report["message"] == "Azure ML gives no reason for the failure"


@pytest.mark.parametrize(
    ("ended", "events", "status"),
    [
        (1100.0, (), "TimedOut"),
        (1050.0, (), "Canceled"),
        (1100.0, ("submitted", "cancel_requested"), "Canceled"),
    ],
)
def test_a_cancelled_job_whose_time_was_up(ended: float, events: tuple[str, ...], status: str) -> None:
    plan = make_plan(command(command="x", instance_count=2, timeout=100), name="run")
    report = judged({0: "step\n"}, status="Canceled", plan=plan, events=events, ended=ended)
    assert report["status"] == status


def test_secrets_in_a_traceback_are_not_in_the_report() -> None:
    key = "hf_" + "a1B2" * 8
    report = judged({0: ASSERT.replace("no such layer", key)}, failed(1))
    assert key not in repr(report)


def test_a_report_that_is_there_stays() -> None:
    run = RunFolder.create("run")
    run.write_json("report.json", {"status": "Completed"})
    verdict.write(run, {}, status="Failed")
    assert run.report() == {"status": "Completed"}


_KEYS = st.sampled_from(["error", "code", "message", "details", "innerError", "additionalInfo"])
_PIECES = st.sampled_from(
    ["", "exited with status code 300", "std_log_process_99.txt", "exit code: -99", "quota", STOPPED]
)
_ANY = st.recursive(
    st.none() | st.integers() | st.text() | _PIECES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=8,
)
_LOGS = st.dictionaries(st.integers(0, 3), st.sampled_from([ASSERT, LOST, STOPPED, "", "\xff\r\n", ASSERT + STOPPED]))


@given(st.dictionaries(_KEYS, _ANY, max_size=4), _LOGS, st.sampled_from(["Failed", "NotResponding", "Canceled"]))
def test_whatever_the_service_says_there_is_a_report(error: dict[str, Any], logs: dict[int, str], status: str) -> None:
    report = judged(logs, error, status, name=f"run-{next(_NUMBERS)}")
    assert report["status"] in ("Failed", "Lost", "TimedOut", "Canceled", "Preempted")
    assert report["exit_code"] != 0
    assert report["message"]
    if status != "Canceled" and ASSERT in logs.values():
        assert report["cause"]["class"] == "exception"


_NUMBERS = itertools.count()
