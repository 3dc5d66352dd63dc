from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from jobsdk import MLClient
from jobsdk.bootstrap.system.processes import cores

from .conftest import ARGV, Jobsdk


def test_it_runs_in_place_and_shows_every_rank(jobsdk: Jobsdk, work: Path) -> None:
    (work / "train.py").write_text("import os, sys\nprint(os.environ['RANK'], os.getcwd(), sys.argv[1:])\n")
    done = jobsdk("run", "--nodes", "2", "--processes", "2", "--", "python", "train.py", "--name", "a b; $HOME", "*")
    assert done.code == 0, done
    argv = ["--name", "a b; $HOME", "*"]
    assert sorted(done.out.splitlines()) == [f"[rank {rank}] {rank} {work} {argv}" for rank in range(4)]
    assert done.err == ""
    (run,) = MLClient().jobs.list()
    assert (run.status, run.nodes, run.processes) == ("Completed", 2, 4)
    assert not run.folder.code.exists()


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)])
def test_it_exits_with_the_jobs_code_and_says_who_failed(jobsdk: Jobsdk, script: str, code: int) -> None:
    done = jobsdk("run", "--processes", "2", "--", "sh", "-c", f"test $RANK = 0 || {{ {script}; }}; sleep 60")
    assert done.code == code, done
    assert done.err.startswith("error: run ")
    assert "rank 1 on node 0" in done.err


def test_the_last_traceback_is_shown(jobsdk: Jobsdk) -> None:
    done = jobsdk("run", "python", "-c", "raise ValueError('bad luck')")
    assert done.code == 1
    assert done.err.rstrip().splitlines()[-2] == "ValueError: bad luck"
    assert "rank 0 on node 0 exited with code 1: ValueError: bad luck" in done.err


def test_settings_and_distributions(jobsdk: Jobsdk) -> None:
    done = jobsdk(
        "run", "--distribution", "tensorflow", "--nodes", "2", "--set", "environment_variables.MINE=7",
        "--set", "name=mine", "--", "sh", "-c", "echo $MINE; test -n \"$TF_CONFIG\"",
    )  # fmt: skip
    assert done.code == 0, done
    assert sorted(done.out.splitlines()) == ["[rank 0] 7", "[rank 1] 7"]
    assert MLClient().jobs.get("mine").distribution == "tensorflow"


def test_a_missing_launcher_is_said_before_anything_starts(jobsdk: Jobsdk, tmp_path: Path, home: Path) -> None:
    done = jobsdk(
        "run", "--distribution", "mpi", "--set", "distribution.launcher=hydra", "true",
        env={**os.environ, "PATH": str(tmp_path)},
    )  # fmt: skip
    assert done.code == 2
    assert "no mpiexec of Hydra (MPICH, Intel MPI) on PATH" in done.err
    assert not (home / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "Missing argument 'COMMAND...'"),
        (["run", "--nodes", "0", "true"], "'--nodes'"),
        (["run", "--procesess", "2", "true"], "No such option"),
        (["run", "--distribution", "mip", "true"], "'mip' is not one of"),
        (["run", "--distribution", "tensorflow", "--processes", "2", "true"], "use --nodes"),
        (["run", "--compute", "nowhere", "true"], "--compute local"),
        (["run", "trian.py"], "did you mean 'train.py'?"),
        (["run", "--nnodes", "1:4", "train.py"], "--nodes 4"),
        (["run", "--nnodes", "two", "train.py"], "'two' is not a number of nodes"),
        (["run", "--nproc-per-node", "two", "train.py"], "'two' is not a number of processes"),
        (["run", "--nproc_per_node", "gpu", "train.py"], "no GPU is visible on this machine. Fix: --processes 1"),
        (["run", "--gpus", "2", "train.py"], "write --processes N"),
        (["run", "--nnodes", "2", "--node_rank", "1", "train.py"], "write --nodes N once, without --node-rank"),
        (["run", "--rdzv-conf", "timeout=9", "train.py"], "--set limits.rendezvous_timeout=900"),
        (["run", "--local_ranks_filter", "0", "train.py"], "jobsdk job stream NAME --rank 0"),
        (["run", "--ntasks-per-node", "2", "train.py"], "write --processes N"),
        (["run", "--env", "NOT_SET_HERE", "train.py"], "--env NOT_SET_HERE=VALUE"),
        (["run", "-g", "group", "train.py"], "write --compute NAME"),
        (["job", "create", "-f", "job.yml", "--workspace-name", "mine"], "write --compute NAME"),
        (["job", "create", "-f", "job.yml", "--web"], "jobsdk ui opens the page of all runs"),
        (["run", "--set", "nonsense", "true"], "'nonsense' is no override"),
        (["run", "--set", "resorces.instance_count=2", "true"], "did you mean"),
    ],
)
def test_wrong_use_is_one_clear_error(
    jobsdk: Jobsdk, home: Path, work: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (work / "train.py").touch()
    done = jobsdk(*words)
    assert done.code == 2, done
    assert message in done.err
    assert done.err.count("error: ") == 1
    assert done.out == ""
    assert not (home / "runs").exists()


def start(*words: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*ARGV, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_cancels_the_job(signum: int, code: int) -> None:
    text = "trap 'echo asked; exit' TERM; echo up; while :; do sleep 0.05; done"
    process = start("run", "--set", "limits.grace_period=600", "sh", "-c", text)
    assert process.stdout is not None
    assert process.stdout.readline() == b"[rank 0] up\n"
    process.send_signal(signum)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == code
    if signum == signal.SIGINT:
        assert b"[rank 0] asked\n" in out
    (run,) = MLClient().jobs.list()
    assert run.wait(200).status == "Canceled"


def test_a_reader_that_leaves_ends_the_job_quietly() -> None:
    process = start("run", "sh", "-c", "while :; do echo line; sleep 0.01; done")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(200) == 141
    assert process.stderr.read() == b""
    (run,) = MLClient().jobs.list()
    assert run.wait(200).status == "Canceled"


@pytest.mark.parametrize("no_color", [False, True])
def test_colors_are_on_a_terminal_only(no_color: bool) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, **({"NO_COLOR": "1"} if no_color else {}), "TERM": "xterm"}
    process = subprocess.Popen([*ARGV, "run", "echo", "hello"], stdout=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # the other side has been closed
            break
    os.close(ours)
    assert process.communicate()[1] == b""
    assert process.returncode == 0
    prefix = b"[rank 0]" if no_color else b"\x1b[36m[rank 0]\x1b[0m"
    # Of a run that takes long a line says meanwhile how it is, and is wiped out again.
    assert re.sub(rb"[^\n]*\r *\r", b"", shown.replace(b"\r\n", b"\n")) == prefix + b" hello\n"


@pytest.mark.parametrize(("answer", "code", "shown"), [(b"n\n", 130, b""), (b"y\n", 0, b"hello")])
def test_far_more_processes_than_cores_are_asked_for_once(answer: bytes, code: int, shown: bytes) -> None:
    ours, theirs = pty.openpty()
    many = str(33 * cores())
    words = [*ARGV, "run", "-n", many, "--", "sh", "-c", "[ $RANK != 0 ] || echo hello"]
    process = subprocess.Popen(words, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    asked = b""
    while b"?" not in asked:
        asked += os.read(ours, 4096)
    assert f"Start {many} processes on {cores()} cores?".encode() in asked
    os.write(ours, answer)
    assert process.stdout is not None
    assert shown in process.stdout.read()
    assert process.wait(200) == code
    process.stdout.close()
    os.close(ours)


@pytest.fixture(params=["", "1"])
def unbuffered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python writes at once, or gathers what it writes: then it may fail at the very end only."""
    monkeypatch.setenv("PYTHONUNBUFFERED", request.param)


@pytest.mark.usefixtures("unbuffered")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "2>/dev/full", "<&-"])
def test_the_jobs_code_counts_whatever_happened_to_the_streams(work: Path, closed: str) -> None:
    line = f"{shlex.join([*ARGV, 'run', '--', 'sh', '-c', 'exit 4'])} {closed}"
    assert subprocess.run(["bash", "-c", line], cwd=work, check=False, timeout=200).returncode == 4


@pytest.mark.usefixtures("unbuffered")
def test_a_run_whose_output_nobody_can_take_is_cancelled(work: Path) -> None:
    line = f"{shlex.join([*ARGV, 'run', '--', 'sh', '-c', 'echo up; exec sleep 600'])} >/dev/full"
    assert subprocess.run(["bash", "-c", line], cwd=work, check=False, timeout=200).returncode == 2
    (run,) = MLClient().jobs.list()
    assert run.wait(200).status == "Canceled"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("delay", [0.02, 0.06, 0.1, 0.15, 0.25])
def test_a_signal_at_any_moment_leaves_nothing_running(work: Path, signum: int, delay: float) -> None:
    process = subprocess.Popen([*ARGV, "run", "--", "sleep", "600"], cwd=work, stderr=subprocess.PIPE, text=True)
    time.sleep(delay)  # the moment is the test
    process.send_signal(signum)
    err = process.communicate(timeout=200)[1]
    assert "jobsdk/cli" not in err, err  # while Python is still starting, it answers Ctrl-C itself
    for run in MLClient().jobs.list():
        assert run.wait(200).status == "Canceled"


def test_torchruns_names_of_the_options_are_known(jobsdk: Jobsdk) -> None:
    for option in ("--nproc_per_node", "--nproc-per-node"):
        done = jobsdk("run", "--nnodes", "2", option, "2", "--", "sh", "-c", "echo $WORLD_SIZE")
        assert (done.code, done.out.count(" 4\n")) == (0, 4), done
    shown = jobsdk("run", "--help").out
    assert "nproc" not in shown
    assert "\n      jobsdk run --nodes 2 -m package.module\n" in shown


@pytest.fixture
def script(work: Path) -> Path:
    """A script that prints its world size and arguments."""
    file = work / "train.py"
    file.write_text("import os, sys\nprint(os.environ['WORLD_SIZE'], *sys.argv[1:])\n")
    return file


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("train.py --lr 1", "1 --lr 1"),
        ("./train.py", "1"),
        ("-n 2 train.py", "2"),
        ("--nproc_per_node 2 train.py -n 3", "2 -n 3"),
        ("--nproc-per-node gpu train.py", "3"),
        ("--nproc-per-node auto train.py", "3"),
        ("-m train a", "1 a"),
        ("--standalone --nnodes 1:1 --nproc-per-node=2 train.py", "2"),
        ("--nnodes 1 --node_rank 0 train.py", "1"),
    ],
)
def test_what_a_torchrun_user_types_runs(
    jobsdk: Jobsdk, script: Path, words: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    done = jobsdk("run", *words.split())
    ranks = range(int(shown.split()[0]))
    assert (done.code, done.err) == (0, ""), done
    assert sorted(done.out.splitlines()) == [f"[rank {rank}] {shown}" for rank in ranks]


def test_an_executable_script_is_its_own_program(jobsdk: Jobsdk, work: Path) -> None:
    (work / "train.py").write_text("#!/bin/sh\necho by sh\n")
    (work / "train.py").chmod(0o755)
    assert jobsdk("run", "./train.py").out == "[rank 0] by sh\n"


def test_options_that_have_nothing_to_do_are_said_to_have_no_effect(jobsdk: Jobsdk, script: Path) -> None:
    done = jobsdk("run", "--rdzv-backend", "c10d", "--rdzv_endpoint=here:1", "--master_addr", "here", script.name)
    assert done.code == 0, done
    assert re.findall(r"warning: (\S+) has no effect: ", done.err) == [
        "--rdzv-backend", "--rdzv-endpoint", "--master-addr",
    ]  # fmt: skip


def test_a_name_a_port_and_variables_of_the_run(jobsdk: Jobsdk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "of this shell")
    done = jobsdk(
        "run", "--name", "first", "--master-port", "29711", "--env", "A=b=c", "--env", "MINE", "--",
        "sh", "-c", "echo $MASTER_PORT $A $MINE",
    )  # fmt: skip
    assert (done.code, done.out) == (0, "[rank 0] 29711 b=c of this shell\n"), done
    assert MLClient().jobs.get("first").status == "Completed"


def test_words_for_processes_count_this_machine_only(jobsdk: Jobsdk, script: Path, work: Path) -> None:
    (work / "computes.yml").write_text("computes: {cluster: {type: slurm}}\n")
    done = jobsdk("run", "--compute", "cluster", "--nproc-per-node", "gpu", script.name)
    assert done.code == 2
    assert "not those of cluster. Fix: --processes 8" in done.err


def test_modules_can_be_imported_once_for_all_ranks(jobsdk: Jobsdk, work: Path) -> None:
    (work / "heavy.py").write_text("import os\nprint('imported by', os.getpid())\n")
    (work / "train.py").write_text("import sys\nprint('heavy' in sys.modules, 'json' in sys.modules)\n")
    done = jobsdk("run", "--processes", "2", "--preload", "heavy,json", "--", "python", "train.py")
    assert (done.code, sorted(done.out.splitlines())) == (0, ["[rank 0] True True", "[rank 1] True True"]), done
    refused = jobsdk("run", "--preload", "nosuch", "--", "python", "train.py")
    assert (refused.code, "False" in refused.out) == (0, True)
    assert "preload: cannot import nosuch" in refused.err
    doubtful = jobsdk("run", "--preload", "json", "--", "sh", "-c", "echo ran")
    assert (doubtful.code, doubtful.out, doubtful.err.count("preload")) == (0, "[rank 0] ran\n", 1), doubtful
    assert "preload: has no effect: the command is not of the form" in doubtful.err
