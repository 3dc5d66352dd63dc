"""Every benchmark runs in its smallest size and gives its figures; with `make parity`, beside the installed peers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchmarks import harness, page
from benchmarks.__main__ import NAMES
from benchmarks.harness import Figures, Row, Table

TORCH = pytest.mark.framework("torch")
ROOT = Path(__file__).resolve().parents[2]
Cells = dict[str, dict[str, str]]  # figure -> contender -> what its cell says

# What each benchmark is there to find out, as our column of its table has it.
NUMBER = r"\d[\d,.]*"
SECONDS = rf"{NUMBER} m?s"
EXPECTED = {
    "import_and_validate": {"import and describe one job": SECONDS, "check a job on the command line": SECONDS},
    "launch": {"first line, 2 ranks": SECONDS, "end, 2 ranks": SECONDS},
    "first_step": {"first step of all ranks": SECONDS, "memory of all processes": rf"{NUMBER} MB"},
    "restart": {"next step of all ranks": SECONDS},
    "cifar_epoch": {"an epoch, 2 nodes x 2": SECONDS, "threads of a process, 2 nodes x 2": NUMBER},
    "logs": {"lines per second": rf"{NUMBER} lines/s", "lines lost": "0", "lines torn": "0"},
    "plan_scale": {"explain, 1,024 ranks": SECONDS, "compiled job's size, 1,024 ranks": rf"{NUMBER} bytes"},
    "control_plane": {
        "all joined, 100 nodes": SECONDS,
        "failure known to all, 100 nodes": SECONDS,
        "one core while idle, 100 nodes": NUMBER,
    },
    "snapshot": {"unchanged, and 300 in an ignored folder": SECONDS},
    "failure": {
        "job ended, 2 nodes x 2": SECONDS,
        "cause named, 1 node x 4": SECONDS,
        "exit code (the rank's was 3), 1 node x 4": "3",
    },
    "functions": {
        "first line of a bare function, on this machine": SECONDS,
        "first line of a function in a process group, on this machine": SECONDS,
    },
    "azure_submit": {
        "new code and data, from the start of the process: seconds": SECONDS,
        "submitted again, nothing changed: seconds": SECONDS,
        "submitted again, nothing changed: requests": NUMBER,
    },
    "views": {
        "first lines, 6,400 lines of 64 ranks": SECONDS,
        "a new line is shown after": SECONDS,
        "card of a job, 1,024 ranks": SECONDS,
    },
    "kubernetes_follow": {
        "line to display": SECONDS,
        "requests a minute while streaming": NUMBER,
        "requests a minute while waiting": NUMBER,
    },
}


def cells(printed: str) -> Cells:
    (head, _, *lines) = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in printed.splitlines() if line.startswith("|")
    ]
    return {line[0]: dict(zip(head[1:], line[1:], strict=True)) for line in lines}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


def test_what_is_expected_covers_all() -> None:
    assert sorted(EXPECTED) == sorted(NAMES)


_AZURE = [pytest.mark.engine("azurite"), pytest.mark.framework("azure")]
_TRAINS = [TORCH, pytest.mark.parity]
_NEEDS = {"azure_submit": _AZURE, "first_step": _TRAINS, "restart": _TRAINS, "cifar_epoch": _TRAINS, "functions": TORCH}


@pytest.mark.slow
@pytest.mark.parametrize("peers", [pytest.param("beside peers", marks=pytest.mark.parity), "without peers"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=_NEEDS.get(name, [])) for name in NAMES])
def test_a_benchmark_gives_its_figures(name: str, peers: str) -> None:
    done = bench(name, "--quick", *(["--without-peers"] if peers == "without peers" else []))
    assert done.returncode == 0, done.stderr
    figures = cells(done.stdout)
    for figure, pattern in EXPECTED[name].items():
        ours = next(iter(figures[figure].values()))
        assert re.fullmatch(pattern, ours), (figure, ours)


def test_what_cannot_be_asked_for_is_said() -> None:
    wrong = bench("lunch")
    assert wrong.returncode == 2
    assert "no benchmark lunch: there are import_and_validate, launch," in wrong.stderr


def test_contenders_take_turns_and_the_first_round_is_not_counted() -> None:
    order = []

    def contender(name: str, *seconds: float) -> Callable[[], Figures]:
        left = iter(seconds)

        def measure() -> Figures:
            order.append(name)
            return {"time": next(left)}

        return measure

    medians = harness.rounds({"A": contender("A", 90, 3, 1, 2), "B": contender("B", 90, 5, 6, 7)}, 3)
    assert medians == {"A": {"time": 2}, "B": {"time": 6}}
    assert order == list("ABABABAB")


TABLE = Table(
    "Title",
    "Method.",
    "Meaning.",
    [
        Row("time", "s", {"ours": 0.2, "theirs": 1.5}),
        Row("lost", "", {"ours": 0, "theirs": 3}),
        Row("rate", "lines/s", {"ours": 200_000, "theirs": 123_456.7}),
        Row("end", "s", {"ours": 2.0, "theirs": "not within 10 s"}),
        Row("alone", "bytes", {"ours": 644}),
    ],
)


def test_a_table_says_ratios_first() -> None:
    assert cells(str(TABLE)) == {
        "time": {"ours": "200 ms", "theirs": "7.50 x (1.50 s)"},
        "lost": {"ours": "0", "theirs": "3"},
        "rate": {"ours": "200,000 lines/s", "theirs": "0.62 x (123,457 lines/s)"},
        "end": {"ours": "2 s", "theirs": "not within 10 s"},
        "alone": {"ours": "644 bytes", "theirs": "-"},
    }


def test_the_page_says_where_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PATH", tmp_path / "benchmarks.md")
    page.write({"launch": TABLE}, quick=False)
    text = page.PATH.read_text()
    assert "## Title\nMeaning.\n\n| figure" in text
    assert re.search(r"Method\. Measured on \d{4}-\d\d-\d\d; to reproduce, after `make bench`:\s", text)
    assert "`.venv-bench/bin/python -m benchmarks launch`." in text
    facts: Mapping[str, str] = dict(re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE))
    assert facts["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"CPU", "memory", "kernel", "torch", "azure-ai-ml", "Open MPI"} <= set(facts)


def test_one_benchmark_can_be_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PATH", tmp_path / "benchmarks.md")
    page.write({"launch": TABLE, "logs": TABLE._replace(title="Logs")}, quick=False)
    page.write({"launch": TABLE._replace(title="Newer")}, quick=False)
    assert re.findall("^## (.*)", page.PATH.read_text(), re.MULTILINE) == ["Newer", "Logs"]
    page.write({"import_and_validate": TABLE._replace(title="First")}, quick=False)
    assert re.findall("^## (.*)", page.PATH.read_text(), re.MULTILINE) == ["First", "Newer", "Logs"]


JOB = """
import sys
from pathlib import Path
from benchmarks.harness import Job
burn = "import time\\nwhile time.process_time() < 0.5: pass"
daemon = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}], start_new_session=True)"
with Job([sys.executable, "-c", daemon], [sys.executable, "-c", "raise SystemExit(4)"], folder=Path.cwd()) as job:
    usage = job.wait(may_fail=True)
print(usage.codes, usage.cpu >= 0.5)
with Job([sys.executable, "-c", "import time; time.sleep(600)"], folder=Path.cwd()) as job:
    print(job.runs(), len(job.processes()))
print(len(job.processes()))
Job([sys.executable, "-c", "raise SystemExit('why')"], folder=Path.cwd()).wait()
"""


def test_a_job_counts_daemons_and_leaves_nothing(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", JOB]
    done = subprocess.run(
        argv, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["(0, 4) True", "True 1", "0"]
    assert done.stderr.rstrip().endswith("ended with 1:\nwhy")
