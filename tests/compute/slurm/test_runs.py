"""Jobs on a real Slurm of four nodes: what they are given, what is said of them, how they end, whatever ends them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk import Input, JobFailed, MLClient, Output, PyTorchDistribution, ScalingConfig, TorchConfig, command
from jobsdk import compute as computes
from jobsdk.client.run import Run
from jobsdk.compute.hosts.host import Host
from jobsdk.compute.slurm.compute import SlurmCompute
from jobsdk.errors import ComputeError
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.refresh import Pace
from jobsdk.runs.state import State
from tests import stores
from tests.bootstrap.runs import wait_for
from tests.compute import collectives
from tests.compute.slurm.cluster import SlurmCluster
from tests.compute.ssh.sshd import Sshd, end_connections
from tests.stores import S3

pytestmark = [pytest.mark.engine("slurm")]

#: The first start waits to be ended; a later one ends by itself.
WAITING = "echo up $JOBSDK_RESTART_COUNT; test $JOBSDK_RESTART_COUNT -ge 1 || exec sleep 600"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), 4) as cluster:
        yield cluster


@pytest.fixture
def cluster(slurm: SlurmCluster, work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The cluster under the name `cluster`, with nothing on it before and after."""
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(SlurmCompute, "pace", Pace(0.1, 0.3))
    (work / "computes.yml").write_text("computes: {cluster: {type: slurm}}")
    yield slurm
    slurm.end_all_jobs()


def configure(**settings: Any) -> None:
    Path("computes.yml").write_text(json.dumps({"computes": {"cluster": {"type": "slurm", **settings}}}))


def start(text: str = WAITING, nodes: int = 2, processes: int = 1, **fields: Any) -> Run:
    properties = {"slurm": fields.pop("slurm", {})}
    distribution = PyTorchDistribution(process_count_per_instance=processes)
    job = command(command=text, distribution=distribution, instance_count=nodes, compute="cluster", **fields)
    job.resources.properties = properties
    return MLClient().jobs.create_or_update(job)


def until_running(run: Run, ranks: int = 2) -> None:
    wait_for(lambda: len([event for event in run.folder.events() if event["event"] == "rank_started"]) >= ranks)


def number(run: Run) -> str:
    return str(run.folder.read_json("slurm.json")["job"])


def kinds(run: Run) -> list[str]:
    return [event["event"] for event in run.folder.events()]


def test_all_ranks_add_up(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # inherited; `explain` does not know a cluster's environment
    run = collectives.check(collectives.job("sockets", 2, "cluster"))
    events = sorted(run.folder.events(), key=lambda event: float(event["t"]))  # who writes is not always in time
    shown = ("submitted", "queued", "allocated", "started", "ended")
    order = [event["event"] for event in events if event["event"] in shown]
    assert order[:2] == ["submitted", "queued"]
    assert order[-1] == "ended"


def test_each_process_sees_its_own_gpus_of_those_that_slurm_gave_the_node(cluster: SlurmCluster) -> None:
    text = "echo $SLURM_JOB_GPUS of $SLURM_GPUS_ON_NODE: $CUDA_VISIBLE_DEVICES"
    run = start(text, processes=2, gpus_per_process=1).result(200)
    said = [(run.folder.logs / f"node-{rank // 2}/rank-{rank}.log").read_text().strip() for rank in range(4)]
    assert said == ["0,1 of 2: 0", "0,1 of 2: 1"] * 2
    configure(gres="gpu:1")
    run = start("echo $CUDA_VISIBLE_DEVICES", nodes=1, processes=2).result(200)
    assert [(run.folder.logs / f"node-0/rank-{rank}.log").read_text() for rank in range(2)] == ["0\n", "0\n"]


def test_workers_are_given_what_they_ask_for(cluster: SlurmCluster) -> None:
    configure(gpus_per_node=2, accelerators={"Quick": {"type": "fake", "constraint": "quick"}})
    each = {"GPU": 0.5, "CPU": 1, "memory": 100 * 2**20, "fpga": 0.5}
    scaling = ScalingConfig(num_workers=8, use_gpu=True, resources_per_worker=each, accelerator_type="Quick")
    text = "echo $LOCAL_RANK of $WORLD_SIZE: $CUDA_VISIBLE_DEVICES, $SLURM_CPUS_PER_TASK cores"
    job = command(command=text, scaling=scaling, torch_config=TorchConfig("gloo"), compute="cluster")
    run = MLClient().jobs.create_or_update(job)
    run.result(200)
    ranks = [(run.folder.logs / f"node-{rank // 4}/rank-{rank}.log").read_text().strip() for rank in range(8)]
    assert ranks == [f"{rank % 4} of 8: {rank % 4 // 2}, 4 cores" for rank in range(8)]
    told = Host().run(["scontrol", "show", "job", number(run)]).out
    for words in ("NumNodes=2", "MinMemoryNode=400M", "Features=quick"):
        assert words in told
    assert re.search("TresPerNode=gres[:/]gpu:fake:2,gres[:/]fpga:2", told), told


def test_a_failure_has_its_card_and_its_code(cluster: SlurmCluster) -> None:
    run = start("test $RANK = 0 || exit 7; exec sleep 600").wait(200)
    assert (run.status, run.exit_code) == ("Failed", 7)
    assert (run.report["cause"]["rank"], run.report["cause"]["node"]) == (1, 1)
    with pytest.raises(JobFailed, match="rank 1 on node 1 exited with code 7") as caught:
        run.result()
    assert "rank 0 stopped by jobsdk" in str(caught.value)
    wait_for(lambda: "FAILED" in cluster.client("scontrol", "-o", "show", "job", number(run)))
    assert "ExitCode=7:0" in cluster.client("scontrol", "-o", "show", "job", number(run))


@pytest.mark.parametrize("node", [0, 1])
def test_a_bootstrap_that_is_killed_is_a_lost_node(cluster: SlurmCluster, node: int) -> None:
    """srun must leave the others the time to say so."""
    run = start()
    until_running(run)
    kind = ("bootstrap_up", "rank_started")
    pids = {(event["event"], event["node"]): event["pid"] for event in run.folder.events() if event["event"] in kind}
    os.kill(pids["bootstrap_up", node], signal.SIGKILL)
    run.wait(200)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids["rank_started", node], signal.SIGKILL)  # a Slurm with cgroups ends it with the step
    assert (run.status, run.exit_code, run.report["cause"]["class"]) == ("Lost", 125, "node_lost")
    if node == 1:
        assert run.report["message"].startswith("node 1 (")
    else:
        assert any("lost the control port" in line for line in run.report["cause"]["last_lines"])


def test_a_job_that_starts_before_its_submission_is_noted_runs(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_there = Host.run

    def late(self: Host, argv: Any, **more: Any) -> Any:
        answer = run_there(self, argv, **more)
        if argv[0] == "sbatch":
            (folder,) = RunFolder.all()
            wait_for(lambda: any(event["event"] == "rank_started" for event in folder.events()))
        return answer

    monkeypatch.setattr(Host, "run", late)
    run = start()
    assert run.status == "Running"
    run.cancel().wait(200)


def test_lines_are_shown_while_the_job_runs(cluster: SlurmCluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    run = start(f"echo first $RANK; while ! test -e {go}; do sleep 0.05; done; echo last $RANK")

    class Shown(io.BytesIO):
        def write(self, data: Any) -> int:
            count = super().write(data)
            if self.getvalue().count(b"first") == 2:
                go.touch()
            return count

    shown = Shown()
    run.stream(out=shown)
    assert sorted(shown.getvalue().split(b"\n"))[1:] == [
        b"[rank 0] first 0", b"[rank 0] last 0", b"[rank 1] first 1", b"[rank 1] last 1",
    ]  # fmt: skip


def test_a_cancelled_job_ends_as_such(cluster: SlurmCluster) -> None:
    run = start()
    until_running(run)
    run.cancel()
    assert run.status in ("CancelRequested", "Canceled")
    run.wait(200)
    assert (run.status, run.exit_code) == ("Canceled", 130)
    assert run.report["message"] == "cancelled on request"


def test_a_job_that_waits_says_why_and_can_be_cancelled_at_once(cluster: SlurmCluster) -> None:
    held = start(slurm={"sbatch": ["--hold"]})
    wait_for(lambda: "it is held; `scontrol release` lets it go (JobHeldUser)" in str(held.state().message))
    assert held.status == "Queued"
    never = start(nodes=2, slurm={"partition": "short"})
    wait_for(lambda: "it will never start" in str(never.state().message))
    for run in (held, never):
        run.cancel()
        assert run.state().status == "Canceled"
        assert run.report["status"] == "Canceled"
        assert "started" not in kinds(run)


def test_scancel_by_hand_is_a_cancellation_also_where_the_job_may_be_requeued(cluster: SlurmCluster) -> None:
    runs = [start(), start(max_preemptions=1)]
    for run in runs:
        until_running(run)
    cluster.client("scancel", *map(number, runs))
    for run in runs:
        run.wait(200)
        assert (run.status, run.exit_code) == ("Canceled", 130)
        assert run.report["message"] == f"Slurm job {number(run)} was cancelled with scancel or by Slurm"


def preempt(cluster: SlurmCluster, run: Run) -> None:
    """Another job needs its nodes."""
    until_running(run)
    cluster.client("sbatch", "--partition=high", "-N4", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")


def test_a_preempted_job_starts_again_from_its_budget(cluster: SlurmCluster) -> None:
    run = start(slurm={"partition": "low", "exclusive": True}, max_preemptions=1, restart_delay=0)
    preempt(cluster, run)

    def requeued() -> State | None:
        state = run.state()  # one look for both: after that pause Slurm starts it by itself
        return state if "it is started again after a short pause" in str(state.message) else None

    assert wait_for(requeued).status == "Queued"
    cluster.start_now(number(run))
    run.result(200)
    (earlier,) = run.report["restarts"]
    assert (earlier["class"], earlier["decision"]) == ("preempted", "restarted at once (1 of 1)")
    assert (run.folder.logs / "node-1/rank-1.restart-1.log").read_text() == "up 1\n"
    found = [kind for kind in kinds(run) if kind in ("started", "restart", "queued", "ended")]
    assert [found.count(kind) for kind in ("started", "restart", "ended")] == [2, 1, 1]
    assert "queued" in found[found.index("restart") :]


def test_a_preempted_job_without_a_budget_has_ended(cluster: SlurmCluster) -> None:
    run = start(slurm={"partition": "low", "exclusive": True})
    preempt(cluster, run)
    run.wait(200)
    assert (run.status, run.exit_code, run.report["cause"]["class"]) == ("Preempted", 143, "preempted")
    assert "got a SIGTERM" in run.report["message"]


def test_slurm_does_not_start_a_job_again_that_makes_no_progress(cluster: SlurmCluster) -> None:
    text = """echo '{"step": 3, "t": 0}' >> $JOBSDK_REPORTS; echo up; exit 5"""
    run = start(text, max_restarts=9, max_preemptions=9, max_no_progress=1, restart_delay=0)
    run.wait(200)
    assert (run.status, run.exit_code, run.report["cause"]["class"]) == ("Failed", 80, "no_progress")
    assert len(run.report["restarts"]) == 1
    wait_for(lambda: cluster.client("squeue", "--noheader", "--jobs", number(run), "--states", "all").split()[4] == "F")
    assert (run.folder.logs / "node-0/rank-0.restart-1.log").read_text() == "up\n"


def test_a_spare_node_that_is_not_needed_ends_with_the_job(cluster: SlurmCluster) -> None:
    run = start("echo up $SLURM_NNODES", max_restarts=1, slurm={"spare": 1})
    run.result(200)
    joined = {event["node"] for event in run.folder.events() if event["event"] == "node_joined"}
    assert joined == {0, 1}
    assert (run.folder.logs / "node-0/rank-0.log").read_text() == "up 3\n"
    wait_for(lambda: number(run) not in cluster.client("squeue", "--noheader", "--format=%i"))
    assert cluster.client("squeue", "--noheader", "--states=all", f"--jobs={number(run)}").split()[4] == "CD"


def test_its_own_time_limit_comes_before_slurms(cluster: SlurmCluster) -> None:
    run = start(timeout=1).wait(200)
    assert (run.status, run.exit_code) == ("TimedOut", 124)
    assert run.report["message"] == "the job was stopped after limits.timeout = 1 s"


def test_a_bootstrap_that_cannot_start_is_told_by_slurms_own_words(cluster: SlurmCluster) -> None:
    configure(python="/no/python3")
    run = start().wait(200)
    assert (run.status, run.exit_code, run.report["cause"]["class"]) == ("Failed", 2, "bootstrap_error")
    assert "ended job" in run.report["message"]
    assert any("/no/python3: No such file" in line for line in run.report["cause"]["last_lines"])


def test_what_sbatch_refuses_leaves_no_run(cluster: SlurmCluster, home: Path, tmp_path: Path) -> None:
    for settings in ({}, {"folder": str(tmp_path / "shared")}):
        configure(partition="nope", **settings)
        with pytest.raises(ComputeError, match=r"sbatch on this machine refuses the job: .*nvalid partition"):
            start()
        assert not list((home / "runs").iterdir())
    assert not list((tmp_path / "shared/runs").iterdir())


def test_a_shared_folder_takes_the_runs_and_the_code(cluster: SlurmCluster, tmp_path: Path, home: Path) -> None:
    shared = tmp_path / "all nodes' 100%j disk"
    configure(folder=str(shared), comment='it\'s "mine" \\ # all')
    Path("src").mkdir()
    Path("src/say.sh").write_text("echo here; echo kept > outputs/note")
    first = start("sh say.sh", code="src").result(200)
    (kept,) = (shared / "code").iterdir()
    stamp = kept.stat()
    second = start("sh say.sh", code="src").result(200)
    assert [path.stat() for path in (shared / "code").iterdir()] == [stamp], "equal code is not sent again"
    for run in (first, second):
        assert (shared / "runs" / run.name / "logs/node-0/rank-0.log").read_text() == "here\n"
        assert Path(run.outputs.default.path, "note").read_text() == "kept\n"
        assert not (run.folder.path / "token").exists()
    assert {one.name for one in MLClient().jobs.list()} == {first.name, second.name}


def test_a_job_in_place_runs_where_it_was_submitted(cluster: SlurmCluster) -> None:
    job = command(command="pwd", compute="cluster")
    run = MLClient().jobs.create_or_update(job, in_place=True).result(200)
    assert (run.folder.logs / "node-0/rank-0.log").read_text().strip() == os.getcwd()


def test_where_its_ranks_are_can_be_asked(cluster: SlurmCluster) -> None:
    run = start("exec python -c 'import time; time.sleep(600)'", nodes=1)
    until_running(run, 1)
    wait_for(lambda: "time.sleep" in str(run.stacks(200)["ranks"]))


def test_the_cluster_is_looked_at(cluster: SlurmCluster) -> None:
    configure(partition="main,nope")
    found = {check.what: check for check in computes.resolve("cluster").check()}
    assert found["Slurm answers"].is_well
    assert found["partition main"].found.startswith("up, 4 nodes, gres gpu:fake:2,fpga:2")
    assert not found["partition nope"].is_well
    assert found["folder"].is_well


def test_a_job_that_nobody_remembers_is_lost(cluster: SlurmCluster) -> None:
    run = start("true", slurm={"sbatch": ["--hold"]})  # it must not end by itself meanwhile
    job = number(run)
    run.folder.write_json("slurm.json", {"job": "999999"})
    state = run.state()
    assert (state.status, state.message) == (
        "Lost", "Slurm no longer knows job 999999, which ended without a report",
    )  # fmt: skip
    cluster.client("scancel", job)


def test_a_controller_that_does_not_answer_changes_nothing(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(slurm={"sbatch": ["--hold"]})
    (tmp_path / "slurm.conf").write_text("this is no configuration\n")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
        with pytest.raises(ComputeError, match="Slurm does not answer on this machine"):
            run.target.refresh(run.folder)
        assert run.status == "Queued"


def test_an_unchanged_resubmission_of_5000_files_reads_no_file(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5000):
        path = Path("src", str(number // 100), f"{number}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value = {number}\n")
    old = time.time() - 100  # what was written a moment ago is read again, since it may have changed since
    for path in Path("src").rglob("*.py"):
        os.utime(path, (old, old))
    hold = {"sbatch": ["--hold"]}
    first = start("true", code="src", slurm=hold)
    written: list[int] = []
    write = Host.write

    def counted(self: Host, folder: str, files: Any, **more: Any) -> None:
        written.append(len(files))
        write(self, folder, files, **more)

    monkeypatch.setattr(Host, "write", counted)
    began = time.perf_counter()
    second = start("true", code="src", slurm=hold)
    print(f"resubmitted 5,000 unchanged files in {time.perf_counter() - began:.3f} s")
    assert sum(written) < 10
    sources = [(run.folder.path / "code.source").read_text() for run in (first, second)]
    assert sources[0] == sources[1]
    assert len(os.listdir(os.path.dirname(sources[0]))) == 1


def test_from_a_login_node(
    cluster: SlurmCluster, sshd: Sshd, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the cluster is seen from here but what ssh brings."""
    variables = f"PATH={os.path.dirname(sys.executable)}:/usr/bin:/bin SLURM_CONF={os.environ['SLURM_CONF']}"
    login = sshd.add("login", variables=variables)
    monkeypatch.delenv("SLURM_CONF")
    configure(login=login, ssh_options=list(sshd.options), folder=str(tmp_path / "shared"))
    Path("src").mkdir()
    said = tmp_path / "said"  # who fails first must not end the other one before that has said anything
    first = f"until test -e {said}; do sleep 0.05; done; echo kept > outputs/note; exit 7"
    Path("src/say.sh").write_text(f"echo here; if test $RANK = 1; then touch {said}; exec sleep 600; fi; {first}")
    shown = io.BytesIO()
    try:
        run = start("sh say.sh", code="src")
        with pytest.raises(JobFailed, match="rank 0 on node 0 exited with code 7"):
            run.stream(out=shown)
        assert sorted(shown.getvalue().splitlines()) == [b"[rank 0] here", b"[rank 1] here"]
        assert run.exit_code == 7
        (path,) = run.target.fetch(run.folder, ["default"]).values()
        assert Path(path, "note").read_text() == "kept\n"
        waiting = start(slurm={"sbatch": ["--hold"]})
        assert waiting.status == "Queued"
        waiting.cancel()
        assert waiting.state().status == "Canceled"
        assert not (tmp_path / "shared/runs" / waiting.name / "token").exists()
        assert all(check.is_well for check in computes.resolve("cluster").check())
        with pytest.raises(ComputeError, match="refuses the job"):
            start(slurm={"partition": "nope"})
        assert len(list((tmp_path / "shared/runs").iterdir())) == 2
    finally:
        monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])
        end_connections(home)


@pytest.mark.parametrize(("folder_mode", "of_file"), [("0700", 0o600), ("2750", 0o640)])
def test_a_shared_folder_is_open_to_whom_folder_mode_says(
    folder_mode: str, of_file: int, cluster: SlurmCluster, work: Path, tmp_path: Path
) -> None:
    """What is submitted there, and what the nodes write there, whatever the umask."""
    (work / "code").mkdir()
    (work / "code/tool.sh").write_text("#!/bin/sh\numask\n")
    (work / "code/tool.sh").chmod(0o755)
    configure(folder=str(tmp_path / "shared"), folder_mode=folder_mode)
    before = os.umask(0)
    try:
        run = start("./tool.sh", code=str(work / "code"))
        assert run.wait().status == "Completed", run.report
    finally:
        os.umask(before)
    shared, mode = tmp_path / "shared", int(folder_mode, 8)
    modes = {path: path.stat().st_mode & 0o7777 for path in (shared, *shared.rglob("*")) if not path.is_symlink()}
    assert {found for path, found in modes.items() if path.is_dir()} == {mode}
    private = {"token", "secrets.json", "secret-marks.json", "compute.json"}
    files = {path: found for path, found in modes.items() if path.is_file() and path.name not in private}
    assert {found for path, found in files.items() if path.name != "tool.sh"} == {of_file}
    assert {found for path, found in files.items() if path.name == "tool.sh"} == {mode & 0o777}
    assert {path.name for path in files} >= {"rank-1.log", "slurm.log", "events.jsonl", "report.json", "plan.json"}


@pytest.mark.framework("stores")
def test_nodes_with_one_folder_fetch_from_and_upload_to_an_object_store_once(cluster: SlurmCluster, s3: S3) -> None:
    run = start(
        "cat ${{inputs.data}}/a.txt main.py; echo $RANK > ${{outputs.model}}/rank-$RANK.txt",
        inputs={"data": Input(path=s3.put("data/a.txt", b"alpha").rpartition("/")[0])},
        code=s3.put("code/main.py", b" and code").rpartition("/")[0],
        outputs={"model": Output(path=f"s3://{s3.bucket}/models")},
        secrets=["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],  # these do not go through sbatch
    ).result(200)
    logs = [(run.folder.logs / f"node-{rank}/rank-{rank}.log").read_text() for rank in range(2)]
    assert logs == ["alpha and code", "alpha and code"]
    found = s3.objects("models")
    found.pop(".jobsdk-upload.json")
    assert found == {"rank-0.txt": b"0\n", "rank-1.txt": b"1\n"}
    assert [event["node"] for event in run.folder.events() if event["event"] == "output_uploaded"] == [0]
    files = [path for path in run.folder.path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in files if stores.SECRET.encode() in path.read_bytes()]
