"""A failed job as its user sees it: the card, the codes, restarts, hangs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from jobsdk import MLClient, PyTorchDistribution, command
from jobsdk.errors import JobFailed

from .conftest import ARGV, Jobsdk

MANY_FRAMES = """
import os, sys
def down(n):
    if n:
        return down(n - 1)
    raise ValueError("no such layer")
print("a line" * 50)
down(60) if os.environ["RANK"] == "3" else os.read(os.pipe()[0], 1)
"""

#: It counts as a hang once all are there: until then they write.
STUCK = """
import os, time
def load():
    os.read(os.pipe()[0], 1)
def reduce():
    os.read(os.pipe()[0], 1)
open("up-" + os.environ["RANK"], "w").close()
while not all(os.path.exists(f"up-{rank}") for rank in range(4)):
    print("waiting", flush=True)
    time.sleep(0.1)
load() if os.environ["RANK"] == "2" else reduce()
"""


def test_card_has_at_most_20_lines_and_the_cause_first(jobsdk: Jobsdk, work: Path) -> None:
    (work / "train.py").write_text(MANY_FRAMES)
    done = jobsdk("run", "--nodes", "2", "--processes", "2", "--set", "name=deep", "--", "python", "train.py")
    assert done.code == 1
    card = done.err[done.err.index("error: run deep") :].rstrip().splitlines()
    assert card[0] == "error: run deep ended as Failed: rank 3 on node 1 exited with code 1: ValueError: no such layer"
    assert "others: ranks 0-2 stopped by jobsdk" in card
    assert len([line for line in card if not line.startswith("logs: ")]) <= 20
    shown = jobsdk("job", "show", "deep").out
    assert card[0].removeprefix("error: ") in shown
    with pytest.raises(JobFailed) as caught:
        MLClient().jobs.get("deep").result()
    cause = caught.value.report["cause"]
    assert (cause["class"], cause["rank"], cause["node"], cause["error"]) == (
        "exception", 3, 1, "ValueError: no such layer",
    )  # fmt: skip
    assert str(caught.value).splitlines()[0] == card[0].removeprefix("error: ")


#: All have failed, and said so, before the first one ends: what fails later is not waited for.
TOGETHER = """
import os, sys, time
def together(*error):
    sys.__excepthook__(*error)
    open("failed-" + os.environ["RANK"], "w").close()
    while not all(os.path.exists(f"failed-{rank}") for rank in range(4)):
        time.sleep(0.001)
sys.excepthook = together
import nowhere_to_be_found
"""


def test_the_same_error_of_all_ranks_is_shown_once(jobsdk: Jobsdk) -> None:
    done = jobsdk("run", "--processes", "4", "--", "python", "-c", TOGETHER)
    assert done.code == 1
    card = done.err[done.err.index("error: run ") :]
    assert card.count("Traceback (most recent call last)") == 1
    assert "nowhere_to_be_found" in card.splitlines()[0]
    assert "also on ranks" in card


def test_restarts_are_said_and_shown_in_order(jobsdk: Jobsdk) -> None:
    text = "echo start $JOBSDK_RESTART_COUNT; test $JOBSDK_RESTART_COUNT = 1 || exit 5"
    done = jobsdk("run", "--max-restarts", "2", "--set", "restart_delay=0", "--set", "name=twice", "sh", "-c", text)
    assert done.code == 0, done
    assert done.out.splitlines() == ["[rank 0] start 0", "[rank 0] start 1"]
    assert "rank 0 on node 0 exited with code 5; restarted at once (1 of 2)" in done.err
    assert jobsdk("job", "logs", "twice").out == done.out
    assert jobsdk("job", "logs", "twice", "--tail", "1").out.splitlines() == ["[rank 0] start 1"]
    report = json.loads(jobsdk("job", "show", "twice", "-o", "json").out)["report"]
    assert [earlier["exit_code"] for earlier in report["restarts"]] == [5]


@pytest.mark.slow
@pytest.mark.parametrize("option", [("--hang-timeout", "5s"), ("--set", "limits.timeout=8")])
def test_a_job_that_hangs_shows_where_its_ranks_are(jobsdk: Jobsdk, work: Path, option: tuple[str, str]) -> None:
    (work / "train.py").write_text(STUCK)
    done = jobsdk("run", "--nodes", "2", "--processes", "2", *option, "--", "python", "train.py")
    assert done.code == 124
    assert "3 ranks in reduce at train.py:6 (ranks 0-1, 3)" in done.err
    assert "rank 2 in load at train.py:4" in done.err


@pytest.mark.framework("mpi")
def test_ranks_under_a_launcher_are_watched_and_asked_too(jobsdk: Jobsdk, work: Path) -> None:
    (work / "train.py").write_text(STUCK)
    options = ("--distribution", "mpi", "--nodes", "2", "--processes", "2", "--hang-timeout", "4")
    done = jobsdk("run", *options, "--set", "distribution.launcher=openmpi", "--", "python", "train.py")
    assert done.code == 124
    assert "3 ranks in reduce at train.py:6 (ranks 0-1, 3)" in done.err
    text = "import time\nfor _ in range(60): print(_, flush=True); time.sleep(0.1)"
    done = jobsdk("run", *options, "--set", "distribution.launcher=openmpi", "--", "python", "-c", text)
    assert done.code == 0, done


@pytest.mark.slow
def test_work_without_output_is_no_hang(jobsdk: Jobsdk) -> None:
    text = "import time; end = time.monotonic() + 6\nwhile time.monotonic() < end: pass"
    assert jobsdk("run", "--hang-timeout", "4", "--", "python", "-c", text).code == 0
    text = "import time\nfor _ in range(60): print(_, flush=True); time.sleep(0.1)"
    assert jobsdk("run", "--hang-timeout", "4", "--", "python", "-c", text).code == 0


@pytest.mark.parametrize("value", ["5 minutes", "0", "-1", "soon"])
def test_a_hang_timeout_that_is_none(jobsdk: Jobsdk, value: str) -> None:
    done = jobsdk("run", "--hang-timeout", value, "true")
    assert done.code == 2
    assert "not a length of time" in done.err


def test_fields_of_restarts_have_hints(jobsdk: Jobsdk, work: Path) -> None:
    (work / "job.yml").write_text("command: 'true'\nhang_timeout: 5m\nmax_restart: 2\nlimits: {max_restarts: 1}\n")
    done = jobsdk("job", "validate", "-f", "job.yml")
    assert done.code == 2
    assert "write limits.hang_timeout" in done.err
    assert "did you mean 'max_restarts'?" in done.err


def test_a_job_submitted_inside_a_job_is_one_of_its_own(jobsdk: Jobsdk, work: Path) -> None:
    inner = "import os, sys; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['JOBSDK_RUN_NAME'])"
    (work / "inner.sh").write_text(f'jobsdk run --set name=inner$RANK -- python -c "{inner}"\n')
    path = os.pathsep.join([os.path.dirname(os.sys.executable), os.environ["PATH"]])
    done = jobsdk("run", "--processes", "2", "--", "sh", "inner.sh", env={**os.environ, "PATH": path})
    assert done.code == 0, done
    assert sorted(done.out.splitlines()) == ["[rank 0] [rank 0] 0 1 inner0", "[rank 1] [rank 0] 0 1 inner1"]


def test_times_of_a_report_are_those_of_the_failure(jobsdk: Jobsdk) -> None:
    before = time.time()
    job = command(command="exit 4", distribution=PyTorchDistribution(), instance_count=2)
    run = MLClient().jobs.create_or_update(job).wait()
    cause = run.report["cause"]
    assert before <= cause["time"] <= run.report["ended"] <= time.time()


#: Rank 1 fails once rank 0 has closed its ears.
DEAF = "if test $RANK = 1; then until test -e up; do sleep 0.05; done; exit 7; fi; trap '' TERM; touch up; "


def test_the_cause_is_said_at_once_where_ranks_take_their_grace_time(work: Path) -> None:
    words = ["run", "--processes", "2", "--set", "limits.grace_period=600", "sh", "-c"]
    text = DEAF + "until test -e go; do sleep 0.05; done"
    process = subprocess.Popen([*ARGV, *words, text], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said.endswith("rank 1 on node 0 exited with code 7; the other ranks are being stopped\n")
    (work / "go").touch()
    lines = process.communicate(timeout=200)[1].splitlines()
    assert process.returncode == 7
    assert "others: rank 0 stopped by jobsdk" in lines


def test_a_rank_that_takes_longer_than_its_grace_time_is_killed(jobsdk: Jobsdk) -> None:
    text = DEAF + "sleep 600 & wait; sleep 600"
    done = jobsdk("run", "--processes", "2", "--set", "limits.grace_period=0.5", "sh", "-c", text)
    assert done.code == 7
    assert "others: rank 0 killed after the grace time" in done.err.splitlines()


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("python train.py", "data/"),
        ("cat data/x.txt", "data/"),
        ("python -c 'import helpers.text'", "helpers/"),
        ("python scripts/train.py", "scripts/"),
    ],
)
def test_what_was_left_out_of_the_code_is_said_before_and_after_a_failure(
    jobsdk: Jobsdk, work: Path, command: str, needed: str
) -> None:
    for file in ("data/x.txt", "helpers/text.py", "scripts/train.py"):
        (work / file).parent.mkdir()
        (work / file).write_text("")
    (work / "train.py").write_text("print(open('data/x.txt').read())\n")
    (work / ".gitignore").write_text(f"*.o\n{needed}\n")
    (work / "job.yml").write_text(f"command: {command}\ncode: .\n")

    done = jobsdk("job", "create", "job.yml", "--name", "first", "--stream")
    assert f"code: left out: {needed} (.gitignore:2)\n" in done.err
    card = done.err[done.err.index("error: ") :].splitlines()
    assert card[0].startswith(f"error: run first ended as Failed: {needed} was left out of the code (.gitignore:2); ")
    (advice,) = (line for line in card if line.startswith("advice: "))
    assert f"advice: add the line !{needed} to .amlignore in the code folder" in advice
    shown = jobsdk("job", "show", "first").out
    assert re.search(f"^left_out +{needed} \\(.gitignore:2\\)$", shown, re.MULTILINE)
    assert f"Failed: {needed} was left out of the code" in shown
    left = json.loads(jobsdk("job", "show", "first", "-o", "json").out)["left_out"]
    assert left == [{"path": needed, "reason": f"is ignored by .gitignore:2: {needed}"}]

    (work / ".amlignore").write_text(f"!{needed}\n")
    done = jobsdk("job", "create", "job.yml", "--stream")
    assert done.code == 0, done
    assert "left out" not in done.err
