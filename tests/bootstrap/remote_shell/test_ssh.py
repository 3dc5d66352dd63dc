"""The remote shell by itself, on a real job of two nodes: bytes, exit codes, signals, names, and who is let in."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobsdk.bootstrap.control.loop import Loop
from jobsdk.bootstrap.remote_shell import pdsh, stream_copy
from jobsdk.bootstrap.remote_shell import ssh as remote_shell
from jobsdk.bootstrap.remote_shell.relay import Relay
from jobsdk.bootstrap.system import processes
from tests.bootstrap.runs import LocalRun, plan, processes_of, wait_for

DIRECT = {"type": "mpi", "processes": 1, "launcher": "direct"}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRun]:
    """A job whose ranks do nothing, to start commands beside them."""
    the_plan = plan("exec sleep 600", distribution=DIRECT, environment={"SETTING": "of the job"}, grace_s=2.0)
    run = LocalRun(tmp_path_factory.mktemp("job") / "run", the_plan)
    wait_for(lambda: len(run.events("rank_started")) == 2)
    yield run
    run.process.terminate()
    run.wait()
    assert processes_of(run.folder) == []


@pytest.fixture
def ssh(job: LocalRun) -> str:
    return program(job, "ssh")


def program(job: LocalRun, name: str, node: int = 0) -> str:
    return f"{job.folder}/remote-shell/node-{node}/{name}"


def run(*argv: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv, capture_output=True, check=False, timeout=200, **more)


def test_streams_and_the_exit_code_pass_through(ssh: str) -> None:
    done = run(ssh, "node-1", "cat; echo no >&2;", "exit", "3", input=b"in\0\xff")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"in\0\xff", b"no\n")


def test_ten_megabytes_come_back_as_they_went(ssh: str) -> None:
    data = os.urandom(10 << 20)
    done = run(ssh, "node-1", "cat", input=data)
    assert done.returncode == 0
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def test_files_serve_as_stdin_and_stdout(ssh: str, tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    (tmp_path / "in").write_bytes(data)
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as target:
        subprocess.run([ssh, "node-1", "cat"], stdin=source, stdout=target, check=True, timeout=200)
    assert (tmp_path / "out").read_bytes() == data


def test_a_command_finds_its_node_and_the_jobs_environment_but_no_token(job: LocalRun, ssh: str) -> None:
    done = run(ssh, "node-1", "env; pwd")
    *lines, folder = done.stdout.decode().splitlines()
    found = dict(line.split("=", 1) for line in lines)
    assert folder == str(job.folder / "work")
    assert (found["NODE_RANK"], found["MASTER_ADDR"], found["SETTING"]) == ("1", "127.0.0.1", "of the job")
    assert found["PATH"].startswith(f"{job.folder}/remote-shell/node-1:")
    assert not {"JOBSDK_TOKEN", "JOBSDK_CONTROL", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK"} & set(found)


@pytest.mark.parametrize("name", ["node-1", "someone@node-1"])
def test_a_node_has_its_names(ssh: str, name: str) -> None:
    assert run(ssh, name, "echo $NODE_RANK").stdout == b"1\n"


def test_localhost_is_the_node_that_asks(job: LocalRun) -> None:
    assert run(program(job, "rsh", node=1), "localhost", "echo $NODE_RANK").stdout == b"1\n"


def test_launchers_that_ask_for_an_address_get_the_one_that_the_others_use(ssh: str) -> None:
    assert run(ssh, "node-1", "hostname", "-I").stdout == b"127.0.0.1\n"


def test_a_signal_goes_to_the_command_and_its_own_end_counts(ssh: str) -> None:
    trapping = "trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.02; done"
    with subprocess.Popen([ssh, "node-1", trapping], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "told\n"
    assert process.returncode == 9


def test_a_command_that_dies_of_a_signal_gives_the_shells_code(ssh: str) -> None:
    assert run(ssh, "node-1", "kill -9 $$").returncode == 137


def test_without_stdin_a_command_reads_nothing(ssh: str) -> None:
    with subprocess.Popen([ssh, "-n", "node-1", "cat; echo end"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as own:
        assert own.stdout is not None
        assert own.stdout.read() == b"end\n"


def test_what_a_command_leaves_behind_does_not_keep_its_caller(ssh: str) -> None:
    assert run(ssh, "node-1", "sleep 600 & echo started").stdout == b"started\n"


def test_when_the_caller_is_killed_the_command_ends(ssh: str) -> None:
    with subprocess.Popen([ssh, "node-1", "echo $$; exec sleep 600"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    wait_for(lambda: processes.start_time(pid) is None)


@pytest.mark.slow
def test_twenty_at_once(ssh: str) -> None:
    started = [
        subprocess.Popen([ssh, f"node-{n % 2}", f"head -c 300000 /dev/zero; exit {n}"], stdout=subprocess.PIPE)
        for n in range(20)
    ]
    assert [(len(one.communicate(timeout=200)[0]), one.returncode) for one in started] == [
        (300000, n) for n in range(20)
    ]


def test_a_name_that_no_node_has_is_said_where_there_is_no_other_ssh(ssh: str, tmp_path: Path) -> None:
    done = run(ssh, "node-7", "true", env={"PATH": str(tmp_path)})
    assert done.returncode == 255
    assert done.stderr == (
        b"jobsdk: remote shell: no node of this job is called node-7; its nodes are node-0, node-1\n"
    )


def test_other_hosts_are_left_to_the_next_ssh_on_path(job: LocalRun, ssh: str, tmp_path: Path) -> None:
    other = tmp_path / "ssh"
    other.write_text('#!/bin/sh\necho "$@"; cat; exit 4\n')
    other.chmod(0o755)
    path = f"{job.folder}/remote-shell/node-0:{tmp_path}:{os.environ['PATH']}"
    done = run(ssh, "-p", "22", "git@example.org", "git fetch", input=b"stdin", env={**os.environ, "PATH": path})
    assert (done.returncode, done.stdout) == (4, b"-p 22 git@example.org git fetch\nstdin")


@pytest.mark.slow
def test_a_wrong_token_gets_nowhere(job: LocalRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = json.loads((job.folder / "remote-shell/node-0/control.json").read_text())
    (tmp_path / "control.json").write_text(json.dumps({**control, "folder": str(tmp_path), "token": "00" * 32}))
    monkeypatch.setenv("JOBSDK_SHELL", str(tmp_path))
    code = (
        "import sys; from jobsdk.bootstrap.remote_shell import ssh as one; "
        "one._JOIN_TIMEOUT_S = 5.0; one.run(sys.argv[1:])"
    )
    done = run(sys.executable, "-c", code, "node-1", "true")
    assert b"answered, but is not this job" in done.stderr


def test_the_token_is_for_this_user_alone_and_goes_with_the_run(tmp_path: Path) -> None:
    run_ = LocalRun(tmp_path / "r", plan("stat -c %a $JOBSDK_RUN_DIR/remote-shell/node-$NODE_RANK/control.json",
                                         distribution=DIRECT))  # fmt: skip
    assert run_.wait() == 0
    assert [run_.log(rank) for rank in (0, 1)] == ["600\n"] * 2
    assert list(run_.folder.glob("remote-shell/*/control.json")) == []
    done = run(program(run_, "ssh"), "node-1", "true")
    assert (done.returncode, done.stderr) == (
        255,
        b"jobsdk: remote shell: there is no running job that this belongs to\n",
    )


def test_pdsh_runs_a_command_on_all_and_tells_the_worst_code(job: LocalRun) -> None:
    words = ["-S", "-f", "1024", "-w", "node-0,node-1", "export A=1;", "echo %n $NODE_RANK $A; printf end; exit", "%n"]
    done = run(program(job, "pdsh"), *words)
    assert sorted(done.stdout.decode().splitlines()) == [
        "node-0: 0 0 1", "node-0: end", "node-1: 1 1 1", "node-1: end",
    ]  # fmt: skip
    assert done.returncode == 1
    assert run(program(job, "pdsh"), *words[1:]).returncode == 0, "without -S"


def test_a_rank_reaches_the_other_nodes_by_the_name_ssh(tmp_path: Path) -> None:
    every = "while read host slots; do ssh $host -n 'echo $NODE_RANK'; done < $JOBSDK_HOSTFILE"
    text = f"if [ $RANK = 0 ]; then {every}; fi"
    done = LocalRun(tmp_path / "r", plan(text, distribution=DIRECT))
    assert done.wait() == 0
    assert done.log(0) == "0\n1\n"


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["h", "a", "b"], ("h", "a b", True)),
        (["-x", "h", "-v"], ("h", "", True)),
        (["-p", "22", "-oA=b", "-o", "C=d", "u@h", "a"], ("h", "a", True)),
        (["-nxp22", "h", "a", "-n"], ("h", "a -n", False)),
        (["-2", "-a", "-lme", "h", "--", "-a"], ("h", "-a", True)),
        (["-V"], None),
        ([], None),
    ],
)
def test_the_words_of_ssh(words: list[str], call: tuple[str, str, bool] | None) -> None:
    assert remote_shell.parse(words) == call


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["-S", "-f", "8", "-w", "a,b", "c", "d"], (["a", "b"], "c d", True, True)),
        (["-Nwssh:u@a,b", "-x", "b", "c"], (["a"], "c", False, False)),
        (["-w", "n[1-4]", "c"], None),
        (["-w", "a"], None),
        (["-g", "all", "c"], None),
    ],
)
def test_the_words_of_pdsh(words: list[str], call: tuple[list[str], str, bool, bool] | None) -> None:
    assert pdsh.parse(words) == call
    assert pdsh.for_host("%n%h %%n %x", "a", 3) == "3a %n %x"


def test_no_more_than_a_window_is_read_before_the_other_end_has_written_it(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(4 * stream_copy.WINDOW))
    loop = Loop()
    sizes: list[int] = []
    ended: list[bool] = []

    def turn() -> None:
        loop.later(0.0, lambda: loop.later(0.0, loop.stop))
        loop.run()

    with (tmp_path / "large").open("rb") as file:
        source = stream_copy.Source(
            loop, file.fileno(), lambda data: sizes.append(len(data)), lambda: ended.append(True)
        )
        for _ in range(50):
            turn()
        assert stream_copy.WINDOW <= sum(sizes) < stream_copy.WINDOW + max(sizes)
        while not ended:
            if sizes:
                source.taken(sizes.pop())
            turn()


def test_a_thousand_nodes_are_found_by_all_their_names() -> None:
    addresses = [f"10.0.{n // 250}.{n % 250 + 1}" for n in range(1000)]
    hosts = {n: f"gpu-{n:04}.cluster.local" for n in range(1000)}
    told: list[tuple[int, dict[str, Any]]] = []

    def tell(node: int, message: dict[str, Any]) -> bool:
        told.append((node, message))
        return True

    relay = Relay(addresses, hosts, tell, lambda: None, lambda node: None)

    said: list[dict[str, Any]] = []
    asking: Any = SimpleNamespace(number=7, kind="shell", send=said.append)
    names = [addresses[999], "node-999", hosts[999], "gpu-0999", "localhost", hosts[3], "gpu-0003"]
    for count, name in enumerate([*names, "gpu-1000"]):
        relay.heard(asking, {"session": f"7.{count}", "what": "open", "host": name, "command": "true", "from": 3})
    assert [node for node, _ in told] == [999] * 4 + [3] * 3
    assert said[0]["what"] == "unknown"
    assert said[0]["message"].endswith("10.0.0.20 and 980 more")
