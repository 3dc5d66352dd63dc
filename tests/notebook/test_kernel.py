"""jobsdk in a live kernel: output while the job runs, interrupts, restarts, and errors that can be read."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from jobsdk import MLClient, command
from tests.bootstrap.runs import wait_for
from tests.notebook.kernel import Kernel

IMPORT = "from jobsdk import MLClient, command\njobs = MLClient().jobs\n"
#: Says so when it has started, and ends once the test has made the file `go`.
PATIENT = "echo started $RANK; until [ -e {go} ]; do sleep 0.05; done; echo went on $RANK"


@pytest.fixture
def go(tmp_path: Path) -> Path:
    return tmp_path / "go"


def submit(go: Path) -> str:
    """A cell that submits the patient job, on two nodes."""
    return f"{IMPORT}run = jobs.create_or_update(command(command={PATIENT.format(go=go)!r}, instance_count=2))\n"


def test_lines_arrive_while_the_job_runs(kernel: Kernel, go: Path) -> None:
    def on_output(text: str) -> None:
        if "started" in text:
            go.touch()  # without it the job never ends, so this output came before its end

    cell = kernel.run(submit(go) + "run.stream()", during=on_output)
    assert cell.error is None
    assert sorted(cell.stdout.splitlines()) == [
        f"[rank {rank}] {said} {rank}" for rank in (0, 1) for said in ("started", "went on")
    ]
    assert "Completed" in str(cell.result)
    assert "[0] went on" not in cell.html  # it stands above the card already
    assert "[0] went on" in kernel.run("run").html


def test_one_rank_is_followed_alone(kernel: Kernel, go: Path) -> None:
    cell = kernel.run(submit(go) + "run.stream(ranks=1)", during=lambda text: go.touch())
    assert cell.stdout.splitlines() == ["[rank 1] started 1", "[rank 1] went on 1"]


@pytest.mark.parametrize("follow", ["stream", "wait", "result"])
def test_an_interrupt_ends_the_showing_and_not_the_run(kernel: Kernel, go: Path, follow: str) -> None:
    # A thread of the kernel tells when the cell is inside of what follows the run.
    watch = (
        "import sys, threading, time, traceback\n"
        "def watch(thread=threading.get_ident()):\n"
        "    while not any(frame.f_code.co_name in ('follow', 'wait')\n"
        "                  and frame.f_code.co_filename.endswith(('jobsdk/runs/logs.py', 'jobsdk/runs/folder.py'))\n"
        "                  for frame, _ in traceback.walk_stack(sys._current_frames()[thread])):\n"
        "        time.sleep(0.01)\n"
        "    print('inside')\n"
        "threading.Thread(target=watch).start()\n"
    )
    interrupted: list[str] = []

    def on_output(text: str) -> None:
        if "inside" in text and not interrupted:
            interrupted.append(text)
            kernel.interrupt()

    assert kernel.run(submit(go)).error is None
    name = str(kernel.run("print(run.name)").stdout).strip()
    cell = kernel.run(f"{watch}run.{follow}()", during=on_output)
    assert cell.error == "KeyboardInterrupt"
    assert cell.traceback.splitlines() == [f"line 9: run.{follow}()", "KeyboardInterrupt"]
    assert cell.stderr == (
        f"{name}: the run goes on: jobsdk job stream {name}, or .stream(), shows it again; "
        f"jobsdk job cancel {name}, or .cancel(), ends it\n"
    )
    # Neither the ranks nor their supervisor were interrupted, and the kernel can follow the run again.
    assert not MLClient().jobs.get(name).state().is_terminal
    go.touch()
    assert "status='Completed'" in str(kernel.run("run.wait()").result)


@pytest.mark.parametrize("now", [False, True], ids=["restarted", "killed"])
def test_the_end_of_its_kernel_leaves_a_run_alone(kernel: Kernel, go: Path, now: bool) -> None:
    cell = kernel.run(submit(go) + "print(run.name)")
    run = MLClient().jobs.get(cell.stdout.strip())
    wait_for(lambda: run.status == "Running")
    kernel.restart(now)
    assert run.status == "Running"
    again = f"{IMPORT}run = jobs.get({run.name!r})\nprint(run.status)\nrun.stream()"
    cell = kernel.run(again, during=lambda text: go.touch())
    assert cell.stdout.startswith("Running\n")
    assert "[rank 0] went on 0\n" in cell.stdout
    assert run.exit_code == 0


def test_each_run_of_the_cell_is_a_run_of_its_own(kernel: Kernel) -> None:
    cell = IMPORT + "run = jobs.create_or_update(command(command='true')).wait()\nprint(run.name, run.status)"
    first, second = (kernel.run(cell).stdout.split() for _ in range(2))
    assert (first[1], second[1]) == ("Completed", "Completed")
    assert {run.name for run in MLClient().jobs.list()} == {first[0], second[0]}
    assert first[0] != second[0]


def test_an_error_is_the_line_of_the_cell_and_what_is_wrong(kernel: Kernel) -> None:
    cell = kernel.run(IMPORT + "job = command(command='true',\n    instance_cout=2, shm_sise='2g')")
    assert cell.error == "ValidationError"
    first, second, *rest = cell.traceback.splitlines()
    assert first == "line 3: job = command(command='true',"
    assert second.startswith("ValidationError: error: instance_cout: ")
    assert len(rest) == 1
    assert "'shm_size'" in rest[0]


def test_wrong_arguments_show_the_signature_and_no_frame_of_jobsdk(kernel: Kernel) -> None:
    kernel.run("from jobsdk import function\n@function()\ndef train(rate: float, steps=3):\n    return rate\n")
    cell = kernel.run("train.submit(1, 2, 3)  # too many")
    assert cell.traceback == (
        "line 1: train.submit(1, 2, 3)  # too many\n"
        "TypeError: train(): too many positional arguments. Fix: pass the arguments of train(rate, steps=3)"
    )


def test_a_failed_run_ends_its_cell_with_the_cause(kernel: Kernel) -> None:
    job = """command(command="python -c 'import os; 1 // (1 - int(os.environ[\\"RANK\\"]))'", instance_count=2)"""
    cell = kernel.run(f"{IMPORT}def go():\n    run = jobs.create_or_update({job})\n    run.stream()\ngo()")
    assert cell.error == "JobFailed"
    lines = cell.traceback.splitlines()
    assert lines[:2] == ["line 6: go()", "line 5: run.stream()"]
    assert "rank 1" in lines[2]
    assert "on node 1" in cell.traceback
    assert any(line.startswith("ZeroDivisionError: ") for line in lines)
    assert "jobsdk/" not in cell.traceback


def test_ranks_do_not_write_for_the_notebook(kernel: Kernel) -> None:
    own = kernel.run("import os; print(bool(os.environ['FORCE_COLOR']), os.environ['MPLBACKEND'])").stdout
    assert own.startswith("True module://matplotlib_inline")
    told = "echo backend=$MPLBACKEND color=$FORCE_COLOR$CLICOLOR_FORCE; printf 'a bar\\r\\303\\251 done\\n'"
    cell = kernel.run(IMPORT + f"run = jobs.create_or_update(command(command={told!r}))\nrun.stream()")
    assert "\x1b" not in cell.stdout + cell.stderr
    assert cell.stdout.splitlines() == ["[rank 0] backend= color=", "[rank 0] é done"]


def test_characters_are_whole_where_a_very_long_line_is_cut() -> None:
    line = "import sys; sys.stdout.buffer.write(('x' + chr(233) * 1_300_000).encode() + bytes([10]))"
    run = MLClient().jobs.create_or_update(command(command=f'python -c "{line}"')).wait()
    shown = io.StringIO()  # takes text only, as a notebook's stdout does
    with contextlib.redirect_stdout(shown):
        run.logs()
    assert shown.getvalue() == "[rank 0] x" + "é" * 1_300_000 + "\n"


def test_the_whole_traceback_stays_for_the_debugger(kernel: Kernel) -> None:
    kernel.run("import sys, traceback\nfrom jobsdk import command\ncommand(nothing=1)")
    cell = kernel.run("print(*(frame.name for frame in traceback.extract_tb(sys.last_traceback)))")
    assert "raise_for" in cell.stdout
