"""The programs of a job print its secrets, and somebody attaches `jobsdk job report --html` to a ticket."""

from __future__ import annotations

import html
import json
import os
import stat
import sys
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsdk import MLClient, command
from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.spec.secrets import SHORTEST
from jobsdk.cli import main
from jobsdk.client.run import Run
from jobsdk.planning.recognition import keep_marks, mask_of
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.names import generate_name
from jobsdk.views.report import document
from tests.compute.ssh.sshd import Sshd, end_connections

#: Nothing in their form says that they are secret.
GIVEN, TAKEN, INHERITED = 'p&ss"wörd <1> 2', "hunter22-from-the-shell", "inherited-hunter33"
LINES = "first line, longer than 16\nsecond line, longer than 16"
VALUES = (GIVEN, TAKEN, INHERITED, *LINES.splitlines())

SCRIPT = """import json, os, sys, time, urllib.parse
values = [os.environ[name] for name in ("GIVEN", "TAKEN", "MY_PASSWORD", "LINES")]
with open(os.environ["JOBSDK_REPORTS"], "w") as file:
    for value in values:
        point = {"t": time.time(), "rank": 0, "step": 0, "metrics": {"x" * 30 + value: 1.0}}
        print(json.dumps(point), file=file)
for value in values:
    print("plain", value, "within" + value + "words", repr([value]), json.dumps({"a": value}), value * 3)
    print(urllib.parse.quote(value, safe=""), "colored \\x1b[31m" + value[:4] + "\\x1b[0m" + value[4:])
    print("a progress bar 1 %\\r" + value)
print("y" * 20_000, values[0], values[1] + "z" * 289)
if sys.argv[1:]:
    raise ValueError("it is " + " and ".join(values))
"""


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is exported where the job is submitted."""
    monkeypatch.setenv("TAKEN", TAKEN)
    monkeypatch.setenv("MY_PASSWORD", INHERITED)


def submit(folder: Path, *arguments: str, compute: str = "local", **variables: str) -> Run:
    source = folder / "src"
    source.mkdir()
    (source / "tell.py").write_text(SCRIPT)
    job = command(
        command=f"{sys.executable} tell.py {' '.join(arguments)}",
        code=source,
        compute=compute,
        environment_variables={"GIVEN": GIVEN, "LINES": LINES, **variables},
        secrets=["GIVEN", "LINES", "TAKEN"],
    )
    return MLClient().jobs.create_or_update(job, warn=lambda text: None)


def assert_holds_none(page: str) -> None:
    for value in VALUES:
        for form in (value, repr(value)[1:-1], json.dumps(value)[1:-1], urllib.parse.quote(value, safe="")):
            for written in (form, html.escape(form), form[-8:], html.escape(form[-8:])):
                assert written not in page, written


@pytest.mark.parametrize("arguments", [(), ("fail",)])
def test_what_a_local_program_prints(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    run = submit(tmp_path, *arguments).wait(200)
    log = Path(paths.rank_log(str(run.folder.path), 0, 0)).read_text()
    for value in VALUES:
        assert value in log  # the log is the program's own
    page = document(run)
    assert_holds_none(page)
    assert "plain *** within***words" in page
    assert "rank 0: " in page
    assert "xxxxxxxxxx***" in page  # the name of a metric
    file = tmp_path / "report.html"
    assert main(["job", "report", run.name, "--html", str(file)]) == 0
    assert_holds_none(file.read_text())


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    run = submit(tmp_path)
    assert_holds_none(document(run))
    assert_holds_none(document(run.wait(200)))


@pytest.mark.engine("ssh")
def test_what_a_program_on_a_cluster_prints(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sshd = Sshd(tmp_path_factory.mktemp("machine"))
    sshd.add("far", variables=f"PATH={os.path.dirname(sys.executable)}:/usr/bin:/bin")
    lab = {"type": "ssh", "hosts": ["far"], "python": sys.executable, "ssh_options": list(sshd.options)}
    (home / "config/jobsdk").mkdir(parents=True)
    (home / "config/jobsdk/computes.yml").write_text(json.dumps({"computes": {"lab": lab}}))
    try:
        run = submit(tmp_path, compute="lab", MY_PASSWORD=INHERITED).wait(200)
        page = document(run)
        assert "plain *** within***words" in page
        assert_holds_none(page)
    finally:
        end_connections(home)
        sshd.close()


def test_nothing_that_is_kept_tells_a_value(tmp_path: Path, home: Path) -> None:
    run = submit(tmp_path).wait(200)
    marks = run.folder.path / "secret-marks.json"
    for path in (marks, home / "secret-marks.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for value in VALUES:
            assert value not in path.read_text()
    # Who has the run's folder alone cannot try values out: what it holds depends on a key that is not in it.
    other = RunFolder.create("other")
    (home / "secret-marks.key").unlink()
    keep_marks(other, {"secret_values": [TAKEN]}, {})
    mine = {tuple(mark) for mark in json.loads(marks.read_text())["marks"]}
    assert not mine & {tuple(mark) for mark in json.loads((other.path / "secret-marks.json").read_text())["marks"]}


@pytest.mark.parametrize("gone", ["marks", "key", "another key", "torn"])
def test_where_values_cannot_be_recognized_no_log_is_told(tmp_path: Path, home: Path, gone: str) -> None:
    run = submit(tmp_path).wait(200)
    marks, key = run.folder.path / "secret-marks.json", home / "secret-marks.key"
    if gone == "torn":
        marks.write_text("{")
    else:
        (marks if gone == "marks" else key).unlink()
    if gone == "another key":
        (tmp_path / "again").mkdir()
        submit(tmp_path / "again").wait(200)
    page = document(run)
    assert_holds_none(page)
    assert "cannot be recognized here" in page
    assert "within" not in page


@given(
    st.text(min_size=SHORTEST, max_size=60).filter(lambda text: len(text.strip()) >= SHORTEST and "*" not in text),
    st.text(max_size=60),
    st.text(max_size=60),
)
def test_any_value_is_masked_anywhere(value: str, before: str, after: str) -> None:
    run = RunFolder.create(generate_name())
    keep_marks(run, {"secret_values": [value]}, {})
    mask = mask_of(run)
    assert mask is not None
    assert value not in mask(before + value + after)


def test_what_only_resembles_a_value_is_left_alone() -> None:
    run = RunFolder.create("run")
    keep_marks(run, {"secret_values": [TAKEN]}, {})
    mask = mask_of(run)
    assert mask is not None
    for text in (TAKEN[1:], TAKEN[:-1], TAKEN.upper(), TAKEN[::-1], ""):  # the last but one has the same sum
        assert mask(text) == text
