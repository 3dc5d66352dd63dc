"""What is made of a job and of the settings for Slurm, and of what Slurm says. Nothing here needs a cluster."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from jobsdk import Input, MLClient, Output, PyTorchDistribution, TensorFlowDistribution, command
from jobsdk import compute as computes
from jobsdk.compute.hosts.host import Answer, Host
from jobsdk.compute.slurm import state as slurm_state
from jobsdk.compute.slurm.compute import SlurmCompute
from jobsdk.compute.slurm.state import JobState
from jobsdk.errors import ComputeError, ValidationError
from jobsdk.runs.state import State


def configure(**settings: Any) -> None:
    Path("computes.yml").write_text(json.dumps({"computes": {"cluster": {"type": "slurm", **settings}}}))


def script(settings: dict[str, Any] | None = None, of_job: dict[str, Any] | None = None, **fields: Any) -> str:
    """The script of a job."""
    configure(**settings or {})
    job = command(command="true", compute="cluster", **fields)
    job.resources.properties = {"slurm": of_job} if of_job else None
    compiled = MLClient().jobs.compile(job, name="run")
    return compiled.compute.native(compiled.spec)


def options(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


def srun(text: str) -> str:
    (line,) = (line for line in text.replace(" \\\n    ", " ").splitlines() if line.startswith("srun "))
    return line


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"partiton": "gpu"}, "did you mean 'partition'?"),
        ({"partition": 3}, "partition must be text"),
        ({"partition": "a\n#SBATCH -N 9"}, "partition must be one line"),
        ({"folder": "runs"}, "folder must be an absolute path"),
        ({"login": "me@login"}, "login needs folder"),
        ({"gpus_per_node": 0}, "gpus_per_node must be a number, or TYPE:NUMBER"),
        ({"gpus_per_node": True}, "gpus_per_node must be a number, or TYPE:NUMBER"),
        ({"time": 3600}, "time must be minutes, H:MM:SS or D-HH:MM:SS, in quotes"),
        ({"exclusive": "yes"}, "exclusive must be true or false"),
        ({"signal": "soon"}, "signal must be seconds, or text such as 30s or 5m"),
        ({"setup": "module load cuda"}, "setup must be a list of lines"),
        ({"sbatch": ["a", "b\nc"]}, "sbatch has 'b\\nc', which must be one line"),
        ({"container": {"image": "x"}}, "container needs runner: pyxis or apptainer"),
        ({"container": {"runner": "docker"}}, "container has a runner that must be pyxis or apptainer"),
        ({"container": {"runner": "pyxis", "mount": []}}, "container has no 'mount'"),
        ({"preload": {}}, "preload"),
        ({"mem": "lots"}, "mem must be a size"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ComputeError) as caught:
        SlurmCompute("cluster", settings)
    assert str(caught.value).startswith("compute cluster: ")
    assert wrong in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "place", "wrong"),
    [
        ({"partiton": "gpu"}, "resources.properties.slurm.partiton", "did you mean 'partition'?"),
        ({"login": "x"}, "resources.properties.slurm.login", "is no setting of a job"),
        ({"time": 60}, "resources.properties.slurm.time", "in quotes"),
        ("gpu", "resources.properties.slurm", "must be a mapping"),
    ],
)
def test_wrong_settings_of_a_job_are_findings(settings: Any, place: str, wrong: str) -> None:
    with pytest.raises(ValidationError) as caught:
        script(of_job=settings)
    assert place in str(caught.value)
    assert wrong in str(caught.value)


def test_every_setting_has_its_place_in_the_script() -> None:
    text = script(
        {
            "partition": "gpu,long", "account": "lab", "qos": "high", "reservation": "r", "constraint": "a100&ib",
            "exclude": "n[1-2]", "gpus_per_node": "a100:8", "cpus_per_task": 16, "mem": "0", "exclusive": True,
            "time": "1-00:00:00", "signal": "1m30s", "comment": "it's #1", "setup": ["module load cuda"],
            "sbatch": ["--mail-type=END"], "srun": ["--mpi=none"], "python": "/opt/py/bin/python3",
        },
        instance_count=3,
    )  # fmt: skip
    assert options(text)[:-2] == [
        "--job-name=run", "--comment='it'\"'\"'s #1'", "--partition=gpu,long", "--account=lab", "--qos=high",
        "--reservation=r", "--constraint='a100&ib'", "--exclude='n[1-2]'", "--nodes=3", "--ntasks-per-node=1",
        "--gpus-per-node=a100:8", "--cpus-per-task=16", "--mem=0", "--exclusive", "--time=1-00:00:00",
        "--signal=TERM@90", "--no-requeue", "--open-mode=append",
    ] + [one for one in options(text) if one.startswith("--output")]  # fmt: skip
    assert options(text)[-1] == "--mail-type=END"
    assert "\nmodule load cuda\n" in text
    assert "\nexport PATH=/opt/py/bin:$PATH\n" in text
    assert "--cpus-per-task=16 --mpi=none /opt/py/bin/python3 -S -E " in srun(text)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_a_job_may_set_what_is_its_own() -> None:
    text = script({"partition": "gpu", "gpus_per_node": 8, "qos": "low"}, {"partition": "cpu", "gres": "gpu:2"})
    assert {"--partition=cpu", "--qos=low", "--gres=gpu:2"} <= set(options(text))
    assert "--gpus-per-node" not in text


@pytest.mark.parametrize(
    ("settings", "fields", "expected"),
    [
        ({}, {}, None),
        ({}, {"gpus_per_process": 2}, "--gpus-per-node=8"),
        ({"gpus_per_node": 8}, {}, "--gpus-per-node=8"),
        ({"gpus_per_node": "h100:8"}, {"gpus_per_process": 1}, "--gpus-per-node=h100:4"),
        ({"gres": "gpu:a100:8,nvme:1"}, {}, "--gres=gpu:a100:8,nvme:1"),
        ({"gres": "gpu:a100:8,nvme:1"}, {"gpus_per_process": 1}, "--gres=gpu:a100:4,nvme:1"),
        ({"gres": "gpu:8"}, {"gpus_per_process": 1}, "--gres=gpu:4"),
        ({"gres": "gpu"}, {"gpus_per_process": 1}, "--gres=gpu:4"),
    ],
)
def test_gpus_of_a_node(settings: dict[str, Any], fields: dict[str, Any], expected: str | None) -> None:
    text = script(settings, distribution=PyTorchDistribution(process_count_per_instance=4), **fields)
    assert next((one for one in options(text) if "gpu" in one or "gres" in one), None) == expected


def test_gpus_for_the_node_that_has_most_tasks_of_tensorflow() -> None:
    distribution = TensorFlowDistribution(worker_count=2, parameter_server_count=1)
    text = script(distribution=distribution, instance_count=2, gpus_per_process=2)
    assert "--gpus-per-node=4" in options(text)


def test_slurms_limit_is_beyond_the_jobs_own() -> None:
    text = script({"time": "10"}, timeout=3600)
    limit = next(one for one in options(text) if one.startswith("--time="))
    assert limit == "--time=0-01:12:00", "an hour, 600 s for the nodes to meet, 10 s of grace and a minute"
    assert "--time=10" in options(script({"time": "10"}))
    assert "--time" not in script()


@pytest.mark.parametrize(
    ("settings", "fields", "expected"),
    [
        ({}, {}, False), ({}, {"max_restarts": 1}, True), ({}, {"max_preemptions": 1}, True),
        ({"requeue": False}, {"max_preemptions": 1}, False), ({"requeue": True}, {}, False),
    ],
)  # fmt: skip
def test_only_a_job_that_may_start_again_is_requeued(
    settings: dict[str, Any], fields: dict[str, Any], expected: bool
) -> None:
    text = script(settings, **fields)
    assert ("--requeue" in options(text), "--no-requeue" in options(text)) == (expected, not expected)
    assert ("scontrol requeue" in text, "JOBSDK_REQUEUES=1" in text) == (expected, expected)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_spare_nodes_are_asked_for_where_a_job_may_restart() -> None:
    text = script({"spare": 2}, instance_count=3, max_restarts=1)
    assert {"--nodes=5", "--no-kill"} <= set(options(text))
    assert "--nodes=5 " in srun(text)
    assert "--no-kill" in srun(text)
    without = script({"spare": 2}, instance_count=3, max_preemptions=1)
    assert "--nodes=3" in options(without)
    assert "--no-kill" not in without


def test_a_spare_node_that_nothing_would_use_is_a_warning() -> None:
    job = command(command="true", compute="cluster", resources={"properties": {"slurm": {"spare": 1}}})
    Path("computes.yml").write_text("computes: {cluster: {type: slurm, folder: /shared, login: user@login}}")
    (found,) = [one for one in MLClient().jobs.validate(job).findings if "spare" in one.path]
    assert (found.is_error, found.message) == (False, "has no effect: max_restarts is 0")


def test_a_container_by_pyxis() -> None:
    container = {"runner": "pyxis", "mounts": ["/data:/data:ro"], "args": ["--container-writable"]}
    settings = {"container": container, "folder": "/shared"}
    text = script(settings, environment={"image": "nvcr.io/nvidia/pytorch:24.05-py3"})
    assert shlex.split(srun(text))[-9:] == [
        "--container-image=nvcr.io#nvidia/pytorch:24.05-py3", "--container-mounts=/shared:/shared,/data:/data:ro",
        "--container-writable", "python3", "-S", "-E", "/shared/runs/run/bootstrap.pyz", "node", "/shared/runs/run",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("image", "named"),
    [("pytorch/pytorch:2.4", "docker://pytorch/pytorch:2.4"), ("/images/torch.sif", "/images/torch.sif"),
     ("oras://x/y", "oras://x/y")],
)  # fmt: skip
def test_a_container_by_apptainer(image: str, named: str) -> None:
    settings = {"container": {"runner": "apptainer", "image": image, "args": ["--nv"]}, "folder": "/shared"}
    assert f" apptainer exec --bind /shared:/shared --nv {named} python3 -S -E " in srun(script(settings))


def test_a_container_without_an_image_is_an_error() -> None:
    with pytest.raises(ValidationError, match="the job names no image"):
        script({"container": {"runner": "pyxis"}})


def test_what_has_no_effect_is_said() -> None:
    configure(signal=20)
    job = command(
        command="true", compute="cluster", environment={"image": "x"}, shm_size="2g", instance_type="none",
        inputs={"rate": 1}, outputs={"model": Output(type="uri_folder", path="azureml://x/y")},
        limits={"grace_period": 28},
    )  # fmt: skip
    found = {str(finding.path[-1]): finding.message for finding in MLClient().jobs.validate(job).findings}
    assert "is not used on the compute cluster: the job runs with python3 there" in found["environment"]
    assert "has no effect" in found["shm_size"]
    assert "kept with the run" in found["path"]
    assert "30 s after its SIGTERM" in found["grace_period"]


def test_what_cannot_be_had_there_is_an_error() -> None:
    configure()
    data = Input(type="uri_folder", path="azureml://datastores/x/paths/y")
    job = command(command="ls ${{inputs.data}}", compute="cluster", inputs={"data": data})
    with pytest.raises(ValidationError, match="can be read only in its cloud"):
        MLClient().jobs.compile(job)
    with pytest.raises(ValidationError, match="no environment is built"):
        MLClient().jobs.compile(command(command="true", compute="cluster"), build_env=True)
    configure(login="me@login", folder="/shared")
    with pytest.raises(ValidationError, match="cannot run in this machine's folder"):
        MLClient().jobs.compile(command(command="true", compute="cluster"), in_place=True)


def test_a_thousand_nodes_are_one_number_more() -> None:
    many = PyTorchDistribution(process_count_per_instance=8)
    small, large = (script({"partition": "gpu"}, instance_count=nodes, distribution=many) for nodes in (2, 1000))
    assert large.replace("--nodes=1000", "--nodes=2") == small
    job = command(command="true", compute="cluster", instance_count=1000, distribution=many)
    MLClient().jobs.compile(job)
    began = time.process_time()
    MLClient().jobs.compile(job)
    print(f"a job of 1,000 nodes compiled in {1000 * (time.process_time() - began):.1f} ms of CPU time")


# -- what Slurm says -------------------------------------------------------------------------------------------------

SHOWN = (
    "JobId=42 JobName=run UserId=me(1) GroupId=me(1) MCS_label=N/A Priority=1 Nice=0 Account=(null) QOS=(null) "
    "JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode={code} "
    "ReqNodeList=n9 ExcNodeList=(null) NodeList={nodes} BatchHost=n1 Comment=JobState=COMPLETED \n"
)


def shown(state: str, reason: str = "None", nodes: str = "(null)", code: str = "0:0") -> JobState:
    return slurm_state.read_scontrol(SHOWN.format(state=state, reason=reason, nodes=nodes, code=code))


def test_scontrol_is_read() -> None:
    assert shown("PENDING", "Resources") == JobState("PENDING", "Resources", "", 0, 2)
    assert shown("RUNNING", nodes="n[1-2]") == JobState("RUNNING", "None", "n[1-2]", 0, 2)
    assert shown("FAILED", "NonZeroExitCode", "n1", "7:0").exit_code == 7
    assert shown("FAILED", "None", "n1", "0:9").exit_code == 137


@pytest.mark.parametrize(
    ("text", "state"),
    [  # as sacct of Slurm 22.05 with slurmdbd says it
        ("CANCELLED by 0|0:0|n[1-2]|None\n", JobState("CANCELLED", "None", "n[1-2]")),
        ("CANCELLED by 1000|0:0|None assigned|None\n", JobState("CANCELLED", "None", "")),
        ("NODE_FAIL|0:0|n1|None\nCOMPLETED|0:0|n2|None\n", JobState("COMPLETED", "None", "n2")),
        ("OUT_OF_MEMORY|0:125|n1|None\n", JobState("OUT_OF_MEMORY", "None", "n1", 253)),
        ("", None),
    ],
)
def test_sacct_is_read(text: str, state: JobState | None) -> None:
    assert slurm_state.read_sacct(text) == state


class Told(Host):
    """A machine on which commands have these answers."""

    def __init__(self, **answers: Answer) -> None:
        self._answers = answers

    def run(self, argv: Any, **_: Any) -> Answer:  # type: ignore[override]
        return self._answers[argv[0]]


def test_who_is_asked() -> None:
    forgotten = Answer(1, "", "slurm_load_jobs error: Invalid job id specified\n")
    remembered = Answer(0, "TIMEOUT|0:0|n1|None\n", "")
    found = slurm_state.ask(Told(scontrol=forgotten, sacct=remembered), "1")
    assert found is not None
    assert found.state == "TIMEOUT"
    none = Answer(1, "", "Slurm accounting storage is disabled\n")
    assert slurm_state.ask(Told(scontrol=forgotten, sacct=none), "1") is None
    with pytest.raises(ComputeError, match="Unable to contact slurm controller"):
        slurm_state.ask(Told(scontrol=Answer(1, "", "Unable to contact slurm controller (connect failure)\n")), "1")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, ("Lost", 125, "node_lost")),
        (JobState("COMPLETED"), ("Lost", 125, "node_lost")),
        (JobState("FAILED", exit_code=2), ("Failed", 2, "bootstrap_error")),
        (JobState("FAILED"), ("Lost", 125, "node_lost")),
        (JobState("CANCELLED"), ("Canceled", 130, "")),
        (JobState("TIMEOUT"), ("TimedOut", 124, "timeout")),
        (JobState("DEADLINE"), ("TimedOut", 124, "timeout")),
        (JobState("PREEMPTED"), ("Preempted", 143, "preempted")),
        (JobState("NODE_FAIL"), ("Lost", 125, "node_lost")),
        (JobState("BOOT_FAIL"), ("Lost", 125, "node_lost")),
        (JobState("OUT_OF_MEMORY", exit_code=253), ("Failed", 137, "out_of_memory")),
    ],
)
def test_an_end_without_a_word_is_never_a_success(state: JobState | None, expected: tuple[str, int, str]) -> None:
    assert slurm_state.end("1", state, cancelled=False, begun=False)[:3] == expected
    assert slurm_state.end("1", state, cancelled=True, begun=True)[:3] == ("Canceled", 130, "")


def test_ranks_that_once_ran_and_left_no_word_are_lost() -> None:
    ended = JobState("FAILED", exit_code=137)
    assert slurm_state.end("1", ended, cancelled=False, begun=True)[:3] == ("Lost", 125, "node_lost")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "the nodes it asks for are in use (Resources)"),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved", "nodes that it needs are down, drained or reserved"),
        (
            "(ReqNodeNotAvail, UnavailableNodes:n1)",
            "nodes that it needs are down, drained or reserved (ReqNodeNotAvail)",
        ),
        ("PartitionNodeLimit", "it will never start. Fix: fewer nodes"),
        ("SomethingNew", "Slurm job 7: SomethingNew"),
        ("None", "Slurm has not looked at it yet"),
    ],
)
def test_reasons_in_words(reason: str, words: str) -> None:
    assert words in slurm_state.reason_in_words("7", JobState("PENDING", reason))


def test_a_run_waits_again_once_its_nodes_were_taken_away() -> None:
    def event(t: float, kind: str, **facts: Any) -> dict[str, Any]:
        return {"t": t, "event": kind, **facts}

    state = State()
    state.feed([event(1, "submitted"), event(2, "queued", message="why")])
    assert (state.status, state.message) == ("Queued", "why")
    state.feed([event(4, "bootstrap_up"), event(5, "started"), event(3, "queued", message="asked before")])
    assert (state.status, state.message) == ("Running", None)
    state.feed([event(6, "restart", restart=1), event(7, "queued", message="again")])
    assert (state.status, state.message) == ("Queued", "again")
    state.feed([event(8, "started"), event(9, "cancel_requested"), event(10, "queued", message="no")])
    assert state.status == "CancelRequested"


def test_a_folder_of_this_machine_is_seen_without_a_login_node() -> None:
    configure()
    assert computes.resolve("cluster").can_run_in_place
    configure(login="me@login", folder="/shared")
    assert not computes.resolve("cluster").can_run_in_place
