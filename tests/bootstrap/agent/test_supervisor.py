"""Whole jobs through the local supervisor: real processes, real sockets, real signals."""

from __future__ import annotations

import http.server
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.archive import command
from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.system import processes, procfs
from tests.bootstrap.runs import LocalRun, plan, processes_of, wait_for

MPI = {"type": "mpi", "processes": 2, "launcher": "mpirun"}


def test_every_rank_gets_its_own_identity(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", plan("echo $RANK $LOCAL_RANK $NODE_RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT"))
    assert run.wait() == 0
    said = [run.log(rank).split() for rank in range(4)]
    assert [words[:4] for words in said] == [
        ["0", "0", "0", "4"], ["1", "1", "0", "4"], ["2", "0", "1", "4"], ["3", "1", "1", "4"]
    ]  # fmt: skip
    assert len({words[4] for words in said}) == 1
    assert run.report()["status"] == "Completed"
    assert [rank["exit_code"] for rank in run.report()["ranks"]] == [0, 0, 0, 0]


def test_the_master_port_can_be_bound(tmp_path: Path) -> None:
    bind = 'import os,socket; socket.socket().bind((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))'
    run = LocalRun(tmp_path / "r", plan(f"[ $RANK != 0 ] || python3 -c '{bind}'"))
    assert run.wait() == 0, run.log(0)


def test_first_failure_ends_all_nodes_and_is_named(tmp_path: Path) -> None:
    failing = 'if [ $RANK = 2 ]; then python3 -c "import os; raise ValueError(5)"; exit 3; fi; exec sleep 600'
    run = LocalRun(tmp_path / "r", plan(failing))
    assert run.wait() == 3
    report = run.report()
    assert (report["status"], report["exit_code"]) == ("Failed", 3)
    cause = report["cause"]
    assert (cause["rank"], cause["node"], cause["exit_code"]) == (2, 1, 3)
    assert cause["message"] == "rank 2 on node 1 exited with code 3: ValueError: 5"
    assert cause["traceback"].splitlines()[-1] == "ValueError: 5"
    assert {rank["rank"] for rank in report["ranks"] if rank["stopped"]} == {0, 1, 3}
    assert processes_of(run.folder) == []


def test_who_has_failed_by_itself_when_its_node_hears_of_another_failure_was_not_stopped(tmp_path: Path) -> None:
    text = "until [ -e ../go ]; do sleep 0.05; done; [ $RANK = 0 ] || [ $RANK = 2 ] || exec sleep 600; exit 3"
    run = LocalRun(tmp_path / "r", plan(text, heartbeat_s=120.0))
    run.until(lambda: len(run.events("rank_started")) == 4)
    pids = {event["rank"]: event["pid"] for event in run.events("rank_started")}
    second = run.bootstrap_pid(1)
    os.kill(second, signal.SIGSTOP)
    (run.folder / "go").touch()
    run.until(lambda: run.events("stopping") and processes.start_time(pids[2]) is None)
    os.kill(second, signal.SIGCONT)
    assert run.wait() == 3
    assert run.report()["cause"]["ranks"] == [0, 2]
    assert [rank["rank"] for rank in run.report()["ranks"] if rank["stopped"]] == [1, 3]


def test_a_signal_counts_as_128_and_its_number(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", plan("[ $RANK = 1 ] && kill -9 $$; exec sleep 600"))
    assert run.wait() == 137
    assert run.report()["cause"]["message"] == "rank 1 on node 0 was killed by SIGKILL"


@pytest.mark.parametrize("code", [0, 4])
def test_grandchildren_do_not_outlive_the_job(tmp_path: Path, code: int) -> None:
    text = f"setsid sleep 601 & (sleep 602 &) ; trap '' TERM; nohup sleep 603 & [ $RANK = 0 ] && exit {code}; exit 0"
    run = LocalRun(tmp_path / "r", plan(text, grace_s=0.5))
    assert run.wait() == code
    assert processes_of(run.folder) == []


STAR = """
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(address)
    others = [server.accept()[0] for _ in range(size - 1)]
else:
    while True:
        try:
            others = [socket.create_connection(address)]
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
time.sleep(0.2)
if rank == int(sys.argv[1]):
    os.kill(os.getpid(), 9) if sys.argv[2] == "kill" else os._exit(3)
for sock in others:
    if not sock.recv(1):
        raise ConnectionResetError("Connection closed by peer")
"""


@pytest.mark.parametrize("culprit", [0, 3])
@pytest.mark.parametrize(("how", "code"), [("exit", 3), ("kill", 137)])
def test_the_culprit_is_named_and_not_those_who_lost_their_peer(
    tmp_path: Path, culprit: int, how: str, code: int
) -> None:
    (tmp_path / "star.py").write_text(STAR)
    run = LocalRun(tmp_path / "r", plan(f"python3 -S {tmp_path}/star.py {culprit} {how}"))
    assert run.wait() == code, run.events("failure")
    assert run.report()["cause"]["rank"] == culprit


def test_a_bootstrap_killed_before_it_joined(tmp_path: Path) -> None:
    log = paths.node_logs(str(tmp_path / "r"), 1) + "/bootstrap.log"
    os.makedirs(os.path.dirname(log))
    os.mkfifo(log)  # nobody reads it: the bootstrap stands before it has done anything
    run = LocalRun(tmp_path / "r", plan("exec sleep 600"))
    (doomed,) = run.until(lambda: [event["pid"] for event in run.events("bootstrap_up") if event["node"] == 1])
    run.until(lambda: run.events("node_joined"))
    os.kill(doomed, signal.SIGKILL)
    assert run.wait() == 125
    assert run.report()["message"] == "the bootstrap of node 1 ended before it joined"


def test_a_bootstrap_killed_after_it_joined_and_before_all_have_is_replaced(tmp_path: Path) -> None:
    log = paths.node_logs(str(tmp_path / "r"), 2) + "/bootstrap.log"
    os.makedirs(os.path.dirname(log))
    os.mkfifo(log)  # the last node waits until somebody reads
    run = LocalRun(tmp_path / "r", plan("echo $RANK", nodes=3))
    run.until(lambda: len(run.events("node_joined")) == 2)
    (doomed,) = [event["pid"] for event in run.events("bootstrap_up") if event["node"] == 1]
    os.kill(doomed, signal.SIGKILL)
    run.until(lambda: len(run.events("node_joined")) == 3)
    with open(log, "rb") as file:
        assert run.wait() == 0
        assert file.read() == b""
    ups = [event["node"] for event in run.events("bootstrap_up")]
    assert sorted(ups) == [0, 1, 1, 2]  # the one that was late is not replaced
    assert [run.log(rank) for rank in range(6)] == [f"{rank}\n" for rank in range(6)]


def test_a_supervisor_and_a_bootstrap_killed_together(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", plan("exec sleep 600"))
    run.until(lambda: len(run.events("rank_started")) == 4)
    node_0, *doomed = [run.bootstrap_pid(0), run.bootstrap_pid(1), run.process.pid]
    for pid in (node_0, *doomed):  # none may act on the end of another before all are gone that are to go
        os.kill(pid, signal.SIGSTOP)
    for pid in doomed:
        os.kill(pid, signal.SIGKILL)
    os.kill(node_0, signal.SIGCONT)
    run.wait()
    wait_for(lambda: run.events("ended"))
    wait_for(lambda: processes_of(run.folder) == [])


def test_all_killed_at_once_leaves_ranks_that_can_be_found(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", plan("exec env -i sleep 600"))
    run.until(lambda: len(run.events("rank_started")) == 4)
    ranks = [event["pid"] for event in run.events("rank_started")]
    # Who is stopped cannot end the ranks because another one is gone.
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in [run.bootstrap_pid(1), run.bootstrap_pid(0), run.process.pid]:
            os.kill(pid, signum)
    run.wait()
    assert any(processes.start_time(pid) is not None for pid in ranks)
    processes.kill_run(str(run.folder))
    wait_for(lambda: all(processes.start_time(pid) is None for pid in ranks))


@pytest.mark.slow
def test_a_stopped_bootstrap_of_node_0_is_found_out_and_killed(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", plan("exec sleep 600", heartbeat_s=4.0))
    os.kill(run.bootstrap_pid(0), signal.SIGSTOP)
    assert run.wait() == 125
    assert run.report()["status"] == "Lost"
    assert processes_of(run.folder) == []


def test_a_node_with_nothing_left_to_do_ends_when_node_0_is_lost(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", plan("[ $RANK -ge 2 ] && exit 0; exec sleep 600", grace_s=60.0))
    run.until(lambda: len(run.events("rank_ended")) == 2)
    os.kill(run.bootstrap_pid(0), signal.SIGKILL)
    assert run.wait() == 125


def test_cancel(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", plan("exec sleep 600"))
    run.until(lambda: len(run.events("rank_started")) == 4)
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.wait() == 130
    assert run.report()["status"] == "Canceled"
    assert processes_of(run.folder) == []


def test_timeout(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", plan("exec sleep 600", timeout_s=1))
    assert run.wait() == 124
    report = run.report()
    assert (report["status"], report["message"]) == ("TimedOut", "the job was stopped after limits.timeout = 1 s")


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_bootstrap_is_a_lost_node(tmp_path: Path, node: int) -> None:
    run = LocalRun(tmp_path / "r", plan("exec sleep 600"))
    os.kill(run.bootstrap_pid(node), signal.SIGKILL)
    assert run.wait() == 125
    assert run.report()["status"] == "Lost"
    assert f"node {node}" in run.report()["message"]
    assert processes_of(run.folder) == []


def test_sigterm_to_one_bootstrap_ends_the_job(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", plan("exec sleep 600"))
    os.kill(run.bootstrap_pid(1), signal.SIGTERM)
    assert run.wait() == 143
    assert run.report()["message"] == f"node 1 ({socket.gethostname()}) got a SIGTERM"


def test_without_its_supervisor_a_run_ends_and_says_so(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", plan("setsid sleep 600 & exec sleep 600"))
    run.until(lambda: len(run.events("rank_started")) == 4)
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    wait_for(lambda: run.events("ended"))
    assert run.report()["message"] == "the supervisor of this run was killed"
    wait_for(lambda: processes_of(run.folder) == [])


def test_output_is_kept_as_it_was_written(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", plan(r"printf 'a\xff\rb\n'; printf 'err\n' >&2; printf 'no newline'", nodes=1))
    assert run.wait() == 0
    content = (run.folder / "logs/node-0/rank-1.log").read_bytes()
    assert content == b"a\xff\rb\nerr\nno newline"


def test_inputs_and_outputs_are_one_word_each_wherever_the_run_lies(tmp_path: Path) -> None:
    data = tmp_path / "my data $x.csv"
    data.write_text("42\n")
    uri = {"type": "uri_file", "mode": None, "uri": str(data)}
    folder = {"type": "uri_folder", "mode": None, "uri": str(tmp_path / "given place")}
    inner = {"type": "uri_folder", "mode": None, "uri": None}
    parts = [
        "cat ",
        {"input": "data"},
        " > ",
        {"output": "out"},
        "/copy; echo $AZURE_ML_INPUT_n >",
        {"output": "in"},
        "/n",
    ]
    the_plan = plan("", nodes=1, inputs={"data": uri, "n": {"literal": "7"}}, outputs={"out": folder, "in": inner})
    run = LocalRun(tmp_path / "run with spaces; and 'more", {**the_plan, "command": parts})
    assert run.wait() == 0, run.log(0)
    assert (tmp_path / "given place/copy").read_text() == "42\n"
    assert (run.folder / "outputs/in/n").read_text() == "7\n"


def test_a_missing_input_fails_the_run_with_its_name(tmp_path: Path) -> None:
    the_plan = plan("true", inputs={"data": {"type": "uri_folder", "mode": None, "uri": str(tmp_path / "gone")}})
    run = LocalRun(tmp_path / "r", the_plan)
    assert run.wait() == 126
    assert run.report()["message"] == f"input data: there is no {tmp_path / 'gone'}"


class _Versions(http.server.BaseHTTPRequestHandler):
    """Serves /d.csv with an ETag, /short with too little, everything else not at all."""

    version = "v1"

    def do_GET(self) -> None:
        current = self.version
        if self.path == "/d.csv" and self.headers.get("If-None-Match") == current:
            self.send_response(304)
            self.end_headers()
        elif self.path in ("/d.csv", "/short"):
            self.send_response(200)
            self.send_header("ETag", current)
            self.send_header("Content-Length", str(len(current) + (self.path == "/short")))
            self.end_headers()
            self.wfile.write(current.encode())
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[http.server.HTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Versions) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _with_url(url: str) -> dict[str, Any]:
    data = {"type": "uri_file", "mode": None, "uri": url}
    return {**plan("", nodes=1, inputs={"d": data}), "command": ["cat ", {"input": "d"}]}


def test_a_download_is_kept_and_asked_about_again(tmp_path: Path, site: http.server.HTTPServer) -> None:
    url = f"http://127.0.0.1:{site.server_port}/d.csv"
    said = []
    for number, version in enumerate(["v1", "v1", "v2"]):
        _Versions.version = version
        run = LocalRun(tmp_path / "home/runs" / str(number), _with_url(url))
        assert run.wait() == 0, run.report()["message"]
        said.append((run.log(0), os.path.realpath(run.folder / "inputs/d/d.csv")))
    assert [text for text, _ in said] == ["v1", "v1", "v2"]
    assert said[0][1] == said[1][1] != said[2][1]
    site.shutdown()
    site.server_close()
    offline = LocalRun(tmp_path / "home/runs/offline", _with_url(url))
    assert offline.wait() == 0
    assert offline.log(0) == "v2"
    assert "cannot be asked" in offline.events("warning")[0]["message"]


@pytest.mark.parametrize("path", ["/none", "/short", "/a b", ":abc/x"])
def test_a_download_that_fails_names_input_and_url(tmp_path: Path, site: http.server.HTTPServer, path: str) -> None:
    url = f"http://127.0.0.1:{site.server_port}{path}"
    run = LocalRun(tmp_path / "home/runs/r", _with_url(url))
    assert run.wait() == 126
    assert run.report()["message"].startswith(f"input d: cannot download {url}: ")


def test_a_run_that_has_ended_is_not_run_again(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", plan("echo once", nodes=1))
    assert run.wait() == 0
    again = subprocess.run(command("local", str(run.folder)), capture_output=True, text=True, check=False)
    nothing = subprocess.run(command("local", str(tmp_path / "none")), capture_output=True, text=True, check=False)
    assert (again.returncode, nothing.returncode) == (66, 66)
    assert "has ended already" in again.stderr
    assert "no job to run" in nothing.stderr
    assert run.log(0) == "once\n"


def test_tensorflow_ends_servers_and_workers_when_the_chief_has_ended(tmp_path: Path) -> None:
    roles = {"type": "tensorflow", "launcher": "direct", "workers": 2, "parameter_servers": 1, "chief": True}
    text = "echo $TF_CONFIG; case $AZUREML_PROCESS_NAME in chief_0) exit 0;; *) sleep 600;; esac"
    run = LocalRun(tmp_path / "r", plan(text, distribution=roles))
    assert run.wait() == 0
    assert run.report()["status"] == "Completed"
    assert processes_of(run.folder) == []


def test_mpirun_ranks_have_the_contract_and_their_logs(tmp_path: Path, require_mpirun: None) -> None:
    text = "echo $RANK $OMPI_COMM_WORLD_RANK $LOCAL_RANK $OMPI_COMM_WORLD_LOCAL_RANK $NODE_RANK $WORLD_SIZE"
    run = LocalRun(tmp_path / "r", plan(text, distribution=MPI))
    assert run.wait() == 0
    assert [run.log(rank).split() for rank in range(4)] == [
        ["0", "0", "0", "0", "0", "4"], ["1", "1", "1", "1", "0", "4"],
        ["2", "2", "0", "0", "1", "4"], ["3", "3", "1", "1", "1", "4"],
    ]  # fmt: skip


def test_mpirun_the_culprits_code_counts(tmp_path: Path, require_mpirun: None) -> None:
    run = LocalRun(tmp_path / "r", plan("[ $RANK = 3 ] && exit 7; exec sleep 600", distribution=MPI))
    assert run.wait() == 7
    assert run.report()["cause"]["rank"] == 3
    assert processes_of(run.folder) == []


def test_no_mpirun_is_said(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "r", plan("true", distribution=MPI), PATH=str(tmp_path))
    assert run.wait() == 126
    assert "no mpirun on PATH" in run.report()["message"]
    assert "launcher: direct" in run.report()["message"]


def test_mpirun_itself_killed(tmp_path: Path, require_mpirun: None) -> None:
    run = LocalRun(tmp_path / "r", plan("exec sleep 600", distribution=MPI))
    run.until(lambda: len(run.events("rank_started")) == 4)
    # Open MPI 5's mpirun goes on as prterun, with the same arguments.
    (launcher,) = (pid for pid in processes_of(run.folder) if "--oversubscribe" in procfs.words(pid))
    os.kill(launcher, signal.SIGKILL)
    assert run.wait() != 0
    assert run.report()["status"] == "Failed"
    assert processes_of(run.folder) == []


def test_who_had_failed_and_was_slow_to_end_is_the_culprit(tmp_path: Path) -> None:
    """Others notice at once that it has closed its connections, and end before it."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, threading, time\n"
        "if os.environ['RANK'] == '2':\n"
        "    threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "    raise ValueError('bad batch')\n"
        "log = os.environ['JOBSDK_RUN_DIR'] + '/logs/node-1/rank-2.log'\n"
        "while not (os.path.exists(log) and 'ValueError: bad batch' in open(log).read()):\n"
        "    time.sleep(0.01)\n"
        "print('RuntimeError: [gloo] Connection closed by peer', flush=True)\n"
        "os._exit(13)\n"
    )
    run = LocalRun(tmp_path / "r", plan(f"exec python {script}"))
    assert run.wait() == 1
    cause = run.report()["cause"]
    assert (cause["rank"], cause["error"]) == (2, "ValueError: bad batch")


@pytest.mark.slow
def test_what_a_pattern_costs_is_limited(tmp_path: Path) -> None:
    """A progress bar is one line of megabytes, and some patterns take for ever on it."""
    rules = {"max": 1, "max_preemptions": 0, "delay_s": 0.0, "retry_on": [], "never_retry_on": ["(a+)+c$", "(?<bad"]}
    text = "head -c 2000000 /dev/zero | tr '\\0' a; echo b; exit 7"
    run = LocalRun(tmp_path / "r", plan(text, nodes=1, restarts=rules))
    assert run.wait() == 7
    assert len(run.report()["restarts"]) == 1
