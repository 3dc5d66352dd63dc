"""Jobs on plain machines: two hosts with networks, names, homes and sshd's of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk import Input, JobFailed, MLClient, Output, PyTorchDistribution, command
from jobsdk import compute as computes
from jobsdk.bootstrap.system import gpu_locks
from jobsdk.client.run import Run
from jobsdk.compute.hosts.remote import RemoteHost
from jobsdk.compute.ssh import compute as ssh_compute
from jobsdk.compute.ssh.compute import SshCompute
from jobsdk.compute.ssh.hosts import ask
from jobsdk.errors import ComputeError, JobsdkError
from jobsdk.runs.refresh import Pace
from tests.bootstrap.namespaces import Hosts
from tests.bootstrap.runs import wait_for
from tests.compute import collectives
from tests.compute.ssh.sshd import Sshd, end_connections

pytestmark = [pytest.mark.engine("ssh"), pytest.mark.engine("network")]

NAMES = ["h0", "h1"]
TWO = PyTorchDistribution(process_count_per_instance=2)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    sshd = Sshd(tmp_path_factory.mktemp("machines"))  # its own: another module's hosts have the same names
    with Hosts(tmp_path_factory.mktemp("hosts"), 2) as hosts:
        path = f"PATH={os.path.dirname(sys.executable)}:/usr/bin:/bin"
        for number, name in enumerate(NAMES):
            sshd.add(name, hosts.argv(number, []), path)
        yield sshd
    sshd.close()


Configure = Callable[..., None]


@pytest.fixture
def lab(machines: Sshd, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Configures the compute `lab`; it has both hosts. Nothing of a job may be left on them."""
    monkeypatch.setattr(SshCompute, "pace", Pace(0.1, 0.5))

    def configure(**settings: Any) -> None:
        content = {"type": "ssh", "hosts": NAMES, "python": sys.executable, "ssh_options": list(machines.options)}
        (home / "config/jobsdk").mkdir(parents=True, exist_ok=True)
        text = json.dumps({"computes": {"lab": {**content, **settings}}})
        (home / "config/jobsdk/computes.yml").write_text(text)

    configure()
    config = machines.config.read_text()
    yield configure
    machines.config.write_text(config)
    end_connections(home)
    deadline = time.monotonic() + 20.0  # a busy machine takes seconds to end what was killed
    while (left := _running(machines)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"the test left processes running on the hosts: {left}"


def _running(machines: Sshd) -> list[int]:
    """Processes of runs on the hosts."""
    mark, found = f"JOBSDK_RUN_DIR={machines.folder}/".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if any(one.startswith(mark) for one in (entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def start(text: str, nodes: int = 2, **fields: Any) -> Run:
    fields.setdefault("distribution", TWO)
    return MLClient().jobs.create_or_update(command(command=text, instance_count=nodes, compute="lab", **fields))


def sleeping(run: Run, ranks: int) -> None:
    """Wait until every rank has said `up`, and the run is known to go on: a log may come before the event."""
    logs = [f"node-{rank // 2}/rank-{rank}.log" for rank in range(ranks)]

    def all_up() -> bool:
        state = run.state()
        assert not state.is_terminal, run.report
        files = [run.folder.logs / log for log in logs]
        return state.status == "Running" and all(file.exists() and file.read_text() for file in files)

    wait_for(all_up)


# -- what must hold everywhere


@pytest.mark.parametrize("kind", collectives.ON_HOSTS)
def test_all_ranks_add_up(lab: Configure, kind: str) -> None:
    run = collectives.check(collectives.job(kind, 2, "lab"))
    joined = {event["node"]: event["host"] for event in run.folder.events() if event["event"] == "node_joined"}
    assert joined == dict(enumerate(NAMES))


def test_a_failure_is_the_failure_everywhere(lab: Configure, machines: Sshd, home: Path) -> None:
    """The culprit's code and place are told; no secret stays anywhere, and no process."""
    text = "[ ${#MY_PASSWORD} = 9 ] || exit 9; [ $RANK = 3 ] || exec sleep 600; exit 7"
    run = start(text, environment_variables={"MY_PASSWORD": "swordfish"}, name="fails")
    with pytest.raises(JobFailed) as failed:
        run.result(200)
    assert (run.status, run.exit_code) == ("Failed", 7)
    cause = run.report["cause"]
    assert (cause["rank"], cause["node"], cause["host"]) == (3, 1, "h1")
    assert "rank 3" in str(failed.value)
    folders = [run.folder.path, *(machines.home(name) / ".jobsdk/runs/fails" for name in NAMES)]
    for folder in folders:
        assert (folder / "plan.json").exists()
        assert not (folder / "token").exists()
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert not [path for path in files if b"swordfish" in path.read_bytes()]


def test_what_ranks_write_is_followed(lab: Configure) -> None:
    import io

    out = io.BytesIO()
    start('echo "rank $RANK of $WORLD_SIZE on $(hostname)"', environment_variables={"A": "b"}).stream(out=out)
    assert sorted(out.getvalue().decode().splitlines()) == [
        f"[rank {rank}] rank {rank} of 4 on h{rank // 2}" for rank in range(4)
    ]


def test_cancel_ends_it_on_all_hosts(lab: Configure) -> None:
    run = start("echo up; exec sleep 600")
    sleeping(run, 4)
    run.cancel()
    assert run.wait(200).status == "Canceled"
    assert run.exit_code == 130


def test_a_run_lives_on_when_the_connection_is_cut(lab: Configure, home: Path) -> None:
    run = start("echo up; while ! [ -e go ]; do sleep 0.1; done; echo done", nodes=1)
    sleeping(run, 2)
    masters = _ssh_processes(home)
    assert masters
    for pid in masters:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not _ssh_processes(home))
    assert run.status == "Running"
    members = run.folder.read_json("nodes.json")["nodes"]
    Path(members[0]["run_dir"], "code/go").touch()
    run.result(200)
    assert (run.folder.logs / "node-0/rank-1.log").read_text() == "up\ndone\n"


def _ssh_processes(home: Path) -> list[int]:
    """The connections that are kept for calls to come."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
                if line.startswith(b"ssh: ") and str(home).encode() in line:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_bootstrap_is_a_lost_run_and_frees_its_host(lab: Configure, node: int) -> None:
    run = start("echo up; exec sleep 600")
    sleeping(run, 4)
    up = {event["node"]: event["pid"] for event in run.folder.events() if event["event"] == "bootstrap_up"}
    os.kill(up[node], signal.SIGKILL)
    assert run.wait(200).status == "Lost"
    assert run.exit_code == 125
    assert f"node {node}" in run.report["message"]
    assert f"h{node}" in run.report["message"]
    start("true").result(200)


def test_a_host_out_of_reach_is_said_and_the_run_stays_as_it_is(lab: Configure, machines: Sshd, home: Path) -> None:
    """To cancel it any other node will do."""
    run = start("echo up; exec sleep 600")
    sleeping(run, 4)
    target, config = run.target, machines.config.read_text()
    for name in reversed(NAMES):
        end_connections(home)
        machines.config.write_text(config.replace(f"Host {name}\n", f"Host {name}\n  ProxyCommand false\n"))
        with pytest.raises(ComputeError, match=f"^run {run.name}: {name}: it closed the connection"):
            target.refresh(run.folder)
        assert run.status == "Running"
    with pytest.raises(ComputeError, match=r"h0: .*; the other nodes were stopped"):
        run.cancel()
    machines.config.write_text(config)
    assert run.wait(200).status == "Canceled"


def test_what_fails_before_the_bootstrap_begins_is_told(lab: Configure) -> None:
    lab(setup=["echo no such module: cuda/99 >&2", "exit 1"])
    run = start("true", nodes=1)
    assert run.wait(200).status == "Failed"
    assert run.report["message"].endswith("on h0 ended before it began: no such module: cuda/99")
    assert run.report["cause"] is not None
    assert run.report["cause"]["host"] == "h0", "not this machine"


def test_setup_is_what_ranks_start_from(lab: Configure) -> None:
    lab(setup=["export FROM_SETUP='a b'"])
    run = start("echo $FROM_SETUP", nodes=1).result(200)
    assert (run.folder.logs / "node-0/rank-0.log").read_text() == "a b\n"


def test_where_ranks_are_can_be_asked(lab: Configure) -> None:
    run = start("echo up; exec python -c 'import time; time.sleep(600)'", nodes=1)
    sleeping(run, 2)
    wait_for(lambda: "2 ranks" in str(run.stacks(200)["groups"]))
    run.cancel().wait(200)


# -- one folder for several hosts


def test_hosts_with_one_folder_get_everything_once(lab: Configure, machines: Sshd, tmp_path: Path) -> None:
    lab(folder=str(tmp_path / "shared"))
    (tmp_path / "src").mkdir()
    (tmp_path / "src/part.py").write_text("")
    run = start("ls; echo $NODE_RANK", code=tmp_path / "src").result(200)
    assert [one["leader"] for one in run.folder.read_json("nodes.json")["nodes"]] == [0, 0]
    assert (run.folder.logs / "node-1/rank-3.log").read_text() == "outputs\npart.py\n1\n"
    assert len([event for event in run.folder.events() if event["event"] == "code_staged"]) == 1
    assert not list((tmp_path / "shared/runs" / run.name).glob("token"))


def test_outputs_of_all_hosts_are_put_together(lab: Configure, tmp_path: Path) -> None:
    text = (
        "echo $RANK > ${{outputs.model}}/rank-$RANK; echo same > ${{outputs.model}}/same; "
        "echo $NODE_RANK > ${{outputs.model}}/mine; echo $NODE_RANK > outputs/log-$NODE_RANK"
    )
    run = start(text, outputs={"model": Output(type="uri_folder")}).result(200)
    folder = MLClient().jobs.download(run, download_path=tmp_path, all=True)
    model = folder / "named-outputs/model"
    assert sorted(path.name for path in model.iterdir()) == [
        "mine",
        "mine.node-1",
        *(f"rank-{n}" for n in range(4)),
        "same",
    ]
    assert (model / "mine.node-1").read_text() == "1\n"
    assert sorted(path.name for path in (folder / "artifacts/outputs").iterdir()) == ["log-0", "log-1"]


def test_unchanged_code_is_sent_once(lab: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/part.py").write_text("print('here')")
    start("python part.py", code=tmp_path / "src").result(200)

    def sent(*_: object) -> None:
        raise AssertionError("files are sent")

    monkeypatch.setattr(RemoteHost, "_rsync", sent)
    monkeypatch.setattr(RemoteHost, "_send_tar", sent)
    run = start("python part.py", code=tmp_path / "src").result(200)
    assert (run.folder.logs / "node-1/rank-3.log").read_text() == "here\n"


# -- who may use what


def test_two_jobs_never_have_the_same_gpus(lab: Configure) -> None:
    lab(hosts=[{"host": "h0", "gpus": 2}])
    one = PyTorchDistribution(process_count_per_instance=1)
    fields: dict[str, Any] = {"nodes": 1, "distribution": one, "gpus_per_process": 1}
    first, second = (start("echo GPU $CUDA_VISIBLE_DEVICES; exec sleep 600", **fields) for _ in range(2))
    for run in (first, second):
        wait_for(lambda run=run: run.status == "Running" and _log(run).endswith("\n"))
    assert [_log(first), _log(second)] == ["GPU 0\n", "GPU 1\n"]
    with pytest.raises(ComputeError) as taken:
        start("true", **fields)
    assert f"h0: GPU 0 is in use by run {first.name} of " in str(taken.value)
    assert f"GPU 1 is in use by run {second.name} of " in str(taken.value)
    first.cancel().wait(200)
    third = start("echo GPU $CUDA_VISIBLE_DEVICES", **fields).result(200)
    assert _log(third) == "GPU 0\n"
    second.cancel().wait(200)


def _log(run: Run) -> str:
    log = run.folder.logs / "node-0/rank-0.log"
    return log.read_text() if log.exists() else ""


def test_every_host_that_cannot_is_named_and_nothing_is_started(lab: Configure, machines: Sshd, home: Path) -> None:
    machines.add("strict", client=["PubkeyAuthentication no"])
    machines.add("down")
    block = machines.config.read_text().replace("Host down\n", "Host down\n  ProxyCommand sleep 60\n")
    machines.config.write_text(block)
    running = start("echo up; exec sleep 600", nodes=1)
    sleeping(running, 2)
    lab(
        hosts=["h0", "h1", "strict", "down", "nowhere.invalid"],
        # For all of them: those that do answer may take seconds for it on a busy machine.
        ssh_options=[*machines.options, "-o", "ConnectTimeout=10"],
    )
    with pytest.raises(ComputeError) as refused:
        start("true", nodes=5)
    text = str(refused.value)
    assert text.startswith("compute lab: 4 of 5 hosts cannot take the job; nothing was started:\n")
    for words in (
        f"\n  h0: it is in use by run {running.name} of ",
        "\n  strict: it refuses every key",
        "\n  down: it does not answer",
        "\n  nowhere.invalid: ssh does not know that name",
    ):
        assert words in text
    assert [run.name for run in MLClient().jobs.list()] == [running.name]
    runs = machines.home("h1") / ".jobsdk/runs"
    assert all((one / "nodes/1").exists() for one in runs.glob("*")), "no folder of a run that was not started"
    lab()
    running.cancel().wait(200)


_TAKE = """
import sys
sys.path.insert(0, sys.argv[1])
from jobsdk.bootstrap.system import gpu_locks as claims
claims.claim(None, None, {"run": "faster", "user": "me"})
print("held", flush=True)
sys.stdin.read()
"""


def test_a_start_that_fails_on_one_host_leaves_nothing_on_any(
    lab: Configure, machines: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two submit at the same moment: the other has the lock between our question and our start."""
    root = str(Path(computes.__file__).parent.parent.parent)
    argv = ["ssh", *machines.options, "h1", shlex.join([sys.executable, "-c", _TAKE, root])]
    faster: list[subprocess.Popen[bytes]] = []
    write = RemoteHost.write

    def late(host: RemoteHost, *given: Any, **more: Any) -> None:
        if host.name == "h1" and not faster:
            faster.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert faster[0].stdout is not None
            assert faster[0].stdout.readline() == b"held\n"
        write(host, *given, **more)

    monkeypatch.setattr(RemoteHost, "write", late)
    with pytest.raises(ComputeError) as failed:
        start("exec sleep 600", name="late-one")
    faster[0].communicate()
    text = str(failed.value)
    assert text.startswith(
        "compute lab: 1 of 2 hosts failed; nothing was left running:\n  h1: it is in use by run faster"
    )
    for name in NAMES:
        assert not (machines.home(name) / ".jobsdk/runs/late-one").exists()


def test_the_check_says_what_is_there(lab: Configure) -> None:
    lab(hosts=["h0", "nowhere.invalid"])
    checks = {check.what: check for check in computes.resolve("lab").check()}
    assert checks["h0 answers"].is_well
    assert "Python 3." in checks["h0 answers"].found
    assert checks["h0 clock"].is_well
    assert not checks["nowhere.invalid"].is_well
    assert checks["nowhere.invalid"].fix


def test_a_host_that_is_slow_to_answer_makes_no_clock_wrong(lab: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    lab(hosts=["h0", "nowhere.invalid"])

    def late(host: RemoteHost, *given: Any, **more: Any) -> Any:
        if host.name != "h0":
            time.sleep(2)
        return ask(host, *given, **more)

    monkeypatch.setattr(ssh_compute, "ask", late)
    monkeypatch.setattr(ssh_compute, "_MOST_CLOCK_DIFFERENCE_S", 0.01)
    checks = {check.what: check for check in computes.resolve("lab").check()}
    assert checks["h0 clock"].is_well, checks["h0 clock"].found


# -- what is said before


def test_more_nodes_than_hosts(lab: Configure) -> None:
    with pytest.raises(JobsdkError, match="the job has 3 nodes, and the compute lab 2 hosts"):
        start("true", nodes=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hosts": []}, "hosts must be a list of machines"),
        ({"hosts": ["a", "a"]}, "hosts has a more than once"),
        ({"hosts": ["a b"]}, "'a b' is no address for ssh"),
        ({"hosts": [{"gpus": 1}]}, r"hosts\[0\] must be an address"),
        ({"hosts": [{"host": "a", "gpu": 1}]}, r"hosts\[0\] has no 'gpu': it knows host, gpus, address"),
        ({"hosts": [{"host": "a", "gpus": "two"}]}, r"hosts\[0\]\.gpus must be how many"),
        ({"hosts": ["a"], "ports": [0]}, "ports must be a list of numbers"),
        ({"hosts": ["a"], "folder": "here"}, "folder must begin with / or ~/"),
        ({"hosts": ["a"], "setup": 7}, "setup must be a list of texts"),
        ({"hosts": ["a"], "gpus_per_node": "8"}, "gpus_per_node must be a number"),
        ({"host": ["a"]}, "did you mean 'hosts'"),
    ],
)
def test_settings_that_are_wrong(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ComputeError, match=f"^compute c: .*{message}"):
        SshCompute("c", settings)


def test_gpus_that_a_host_does_not_have(lab: Configure) -> None:
    lab(hosts=[{"host": "h0", "gpus": 1}, "h1"])
    with pytest.raises(JobsdkError, match="each node needs 2 GPUs, and h0 has 1"):
        start("true", nodes=1, gpus_per_process=1)
    with pytest.raises(JobsdkError, match="how many GPUs h1 has is not said"):
        start("true", nodes=2, gpus_per_process=1)


def test_locks_lie_in_a_folder_for_all_users() -> None:
    held = gpu_locks.claim(["test-of-claims"], None, {"run": "r", "user": "u"})
    try:
        assert oct(os.stat(gpu_locks.FOLDER).st_mode & 0o7777) == "0o1777"
        assert gpu_locks.look(["test-of-claims"], None) is not None
    finally:
        gpu_locks.release(held)
    assert gpu_locks.look(["test-of-claims"], None) is None


@pytest.mark.parametrize(("folder_mode", "of_file"), [("0700", 0o600), ("0750", 0o640)])
def test_what_hosts_keep_is_open_to_whom_folder_mode_says(
    folder_mode: str, of_file: int, lab: Configure, machines: Sshd, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "tool.sh").write_text("#!/bin/sh\numask\n")
    (code / "tool.sh").chmod(0o755)
    folder = f"~/of-{folder_mode}"
    lab(folder=folder, folder_mode=folder_mode, setup=["umask 0000"])
    run = start("./tool.sh", code=str(code)).wait()
    assert run.status == "Completed", run.report
    for name in NAMES:
        there, mode = machines.home(name) / folder[2:], int(folder_mode, 8)
        modes = {path: path.stat().st_mode & 0o7777 for path in (there, *there.rglob("*")) if not path.is_symlink()}
        assert {path for path, found in modes.items() if path.is_dir() and found != mode} == set()
        files = {path: found for path, found in modes.items() if path.is_file()}
        assert {found for path, found in files.items() if path.name == "tool.sh"} == {mode & 0o777}
        assert {path for path, found in files.items() if path.name != "tool.sh" and found != of_file} == set()
    assert (run.folder.logs / "node-1/rank-2.log").read_text() == "0000\n"
    assert run.folder.path.stat().st_mode & 0o777 == mode


@pytest.mark.framework("stores")
def test_hosts_fetch_from_and_upload_to_an_object_store(lab: Configure, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "data").mkdir(parents=True)
    (store / "data/a.txt").write_text("alpha")
    run = start(
        "cat ${{inputs.data}}/a.txt; echo $RANK > ${{outputs.model}}/rank-$RANK.txt",
        inputs={"data": Input(path=f"local://{store}/data")},
        outputs={"model": Output(path=f"local://{store}/models")},
    ).wait(200)
    assert run.status == "Completed", run.report
    assert _log(run) == "alpha"
    places = [f"{'node-1/' if rank > 1 else ''}rank-{rank}.txt" for rank in range(4)]
    assert [(store / "models" / place).read_text() for place in places] == [f"{rank}\n" for rank in range(4)]
    MLClient().jobs.download(run, download_path=tmp_path / "got", output_name="model")
    assert (tmp_path / "got/named-outputs/model/node-1/rank-3.txt").read_text() == "3\n"
