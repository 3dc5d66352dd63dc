"""Runs of functions on this machine: what their handles give, whatever becomes of them."""

from __future__ import annotations

import io
import os
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from jobsdk import JobFailed, JobsdkError, MLClient, PyTorchDistribution, as_completed, function
from jobsdk.client.outcome import RemoteTraceback
from jobsdk.client.run import Run
from tests.bootstrap.runs import wait_for
from tests.functions.project import work
from tests.functions.project.models import Point
from tests.functions.project.models.shapes import WrongShape

TWO = PyTorchDistribution(process_count_per_instance=2)


@pytest.fixture(autouse=True)
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def logged(run: Run) -> str:
    out = io.BytesIO()
    run.logs(out=out)
    return out.getvalue().decode()


def test_rank_0s_value_all_ranks_values_and_another_process(tmp_path: Path) -> None:
    run = MLClient().jobs.create_or_update(function(work.share, 10, distribution=TWO, instance_count=2))
    assert run.result() == (0, Point(10))
    assert run.result(all_ranks=True) == [(rank, Point(10 + rank)) for rank in range(4)]
    assert (run.done(), run.exception(), run.is_of_function) == (True, None, True)
    assert run.properties["jobsdk.function"] == "share"
    program = f"from jobsdk import MLClient\nprint(MLClient().jobs.get({run.name!r}).result(all_ranks=True)[3])"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    elsewhere = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    assert elsewhere.stdout == "(3, Point(x=13, y=0))\n"
    # The files with the values are no logs, neither where logs are shown nor where they are copied to; reports are.
    assert logged(run) == ""
    target = MLClient().jobs.download(run.name, download_path=tmp_path / "here")
    there = {path.name for path in (target / "artifacts/logs/node-1").iterdir()}
    reports = {"reports-2.log", "reports-3.log"}  # what `share` has reported
    assert there == {"bootstrap.log", "rank-2.log", "rank-3.log", *reports}


@pytest.mark.framework("torch")
def test_tensors_and_large_arrays_come_and_go() -> None:
    import numpy as np
    import torch

    def doubled(array: np.ndarray[Any, Any], tensor: torch.Tensor) -> Any:
        return array[::4] * 2, tensor + 1

    array = np.arange(6_500_000.0)  # 52 MB
    values, tensor = function(doubled, array, torch.ones(3), in_place=True).submit().result()
    assert np.array_equal(values, array[::4] * 2)
    assert torch.equal(tensor, torch.full((3,), 2.0))


def test_the_culprits_exception_is_raised_here_with_its_traceback_there() -> None:
    run = function(work.last_fails, instance_count=2, distribution=TWO).submit()
    error = run.exception()
    assert isinstance(error, WrongShape)
    with pytest.raises(WrongShape, match="of the last rank") as caught:
        run.result()
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert (cause.rank, cause.node) == (3, 1)
    assert str(cause).startswith("in rank 3 on node 1:\n\nTraceback (most recent call last):\n")
    assert 'raise WrongShape("of the last rank")' in str(cause)
    assert str(pickle.loads(pickle.dumps(cause))) == str(cause)
    assert run.exit_code == 1


def test_an_exception_that_cannot_be_made_again_is_a_failure_with_its_text() -> None:
    with pytest.raises(JobFailed, match="TwoPart: one and two") as caught:
        function(work.two_parts).submit().result()
    assert "raise TwoPart(" in str(caught.value.__cause__)


def interrupt() -> None:
    raise KeyboardInterrupt


def grouped() -> None:
    raise ExceptionGroup("several", [ValueError("a"), WrongShape("b")])  # type: ignore[name-defined,unused-ignore]  # noqa: F821


def killed() -> None:
    os.kill(os.getpid(), 9)


def exits() -> None:
    sys.exit(3)


@pytest.mark.parametrize(
    ("fn", "code", "words"),
    [
        (exits, 3, "exited with code 3"),
        (interrupt, 1, "KeyboardInterrupt"),
        (killed, 137, "was killed by SIGKILL"),
        (lambda: threading.Lock(), 1, "cannot be pickled: TypeError: cannot pickle '_thread.lock' object"),
    ],
)
def test_other_ends_are_failures_with_the_card(fn: Any, code: int, words: str) -> None:
    run = function(fn).submit()
    with pytest.raises(JobFailed, match=words) as caught:
        run.result()
    assert caught.value.report["exit_code"] == code
    assert isinstance(run.exception(), JobFailed)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups")
def test_a_group_of_exceptions_comes_as_one() -> None:
    error = function(grouped).submit().exception()
    assert [type(one) for one in error.exceptions] == [ValueError, WrongShape]  # type: ignore[union-attr]


def test_the_value_is_that_of_the_last_start() -> None:
    run = function(work.first_fails, "start", max_restarts=1, restart_delay=0).submit()
    assert run.result() == "start 1"


def test_a_cancelled_run_is_a_failure_that_says_so(tmp_path: Path) -> None:
    run = function(work.waits, str(tmp_path)).submit()
    wait_for((tmp_path / "running-0").exists)
    with pytest.raises(TimeoutError, match=r"is still Running after 0\.01 s"):
        run.result(timeout=0.01)
    assert not run.done()
    assert run.cancel().wait().done()
    with pytest.raises(JobFailed) as caught:
        run.result()
    assert caught.value.report["status"] == "Canceled"


def test_in_place_it_works_where_the_job_would(work_folder: Path) -> None:
    Path("data.txt").write_text("here")
    assert function(lambda: Path("data.txt").read_text(), in_place=True).submit().result() == "here"
    assert function(lambda: Path("data.txt").exists()).submit().result() is False
    folder = work_folder / "a: b"
    folder.mkdir()
    job = function(lambda: os.getcwd(), in_place=True, code=str(folder))
    assert MLClient().jobs.create_or_update(job).result() == str(folder)
    assert MLClient().jobs.validate(job).findings == ()


def test_a_home_with_a_space_and_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBSDK_HOME", str(tmp_path / "my: home"))
    assert function(work.late).submit().result() == "lazy"
    assert function(work.late, in_place=True).submit().result() == "lazy"


def test_a_deleted_working_directory_is_told(work_folder: Path) -> None:
    work_folder.rmdir()
    with pytest.raises(JobsdkError, match="the working directory has been deleted"):
        function(work.late, in_place=True).submit()


def test_two_processes_may_send_one_call_at_once(home: Path) -> None:
    program = (
        "from tests.functions import calling\n"
        "from tests.functions.project import work\n"
        "print(calling.staged(work.even, 4))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    started = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env) for _ in range(3)]
    folders = {one.communicate()[0] for one in started}
    assert [one.returncode for one in started] == [0] * 3
    assert len(folders) == 1
    assert len([path for path in (home / "functions").iterdir() if path.is_dir()]) == 1


def test_folders_that_nobody_uses_are_taken_away(home: Path) -> None:
    from tests.functions import calling

    old, used = calling.staged(work.even, 1), calling.staged(work.even, 2)
    for folder in (old, used):
        os.utime(folder, (1e9, 1e9))
    assert calling.staged(work.even, 2) == used  # and now it is young again
    new = calling.staged(work.even, 3)
    assert {path.name for path in (home / "functions").iterdir() if path.is_dir()} == {used.name, new.name}


class Trainer:
    def __init__(self, base: int) -> None:
        self.base = base

    @function()
    def fit(self, number: int) -> int:
        return self.base + number


def test_a_method_brings_its_object() -> None:
    assert Trainer(1).fit(2) == 3
    assert Trainer(1).fit.submit(2).result() == 3
    assert list(Trainer(1).fit.map([1, 2])) == [2, 3]


def test_functions_submit_functions() -> None:
    def outer(number: int) -> int:
        return int(function(work.returned, number).submit().result()) + int(inner.submit(number).result())

    @function()
    def inner(number: int) -> int:
        return number * 10

    assert function(outer, 2).submit().result() == 22


def test_explaining_shows_the_call() -> None:
    job = function(work.share, 1, distribution=TWO)
    assert [process.rank for process in job.explain()] == [0, 1]
    assert repr(job) == "FunctionJob(share)"


# -- several at once


def counts(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "counts").read_text().split()]


def test_never_more_than_the_limit_are_under_way(tmp_path: Path) -> None:
    waits = function()(work.waits)
    values = waits.map([str(tmp_path)] * 5, range(5), limit=2)
    wait_for(lambda: len(list(tmp_path.glob("running-*"))) == 2)
    assert len(MLClient().jobs.list()) == 2
    (tmp_path / "go").touch()
    assert list(values) == list(range(5))
    assert max(counts(tmp_path)) == 2
    assert len(MLClient().jobs.list()) == 5


def test_the_first_exception_in_order_ends_the_others(tmp_path: Path) -> None:
    def either(number: int) -> int:
        return work.waits(str(tmp_path), number) if number != 1 else 1 // 0

    values = function()(either).map(range(6), limit=3)
    wait_for(lambda: any(run.status == "Failed" for run in MLClient().jobs.list()))
    wait_for((tmp_path / "running-0").exists)
    (tmp_path / "go").touch()
    assert next(values) == 0
    (tmp_path / "go").unlink()
    with pytest.raises(ZeroDivisionError):
        next(values)
    with pytest.raises(StopIteration):
        next(values)
    ends = {"Completed", "Failed", "Canceled"}
    found = wait_for(lambda: (now := {run.status for run in MLClient().jobs.list()}) <= ends and now)
    assert {"Completed", "Failed"} <= found


def test_a_function_that_raises_stop_iteration_does_not_end_the_values() -> None:
    def ends(number: int) -> int:
        if number == 1:
            raise StopIteration(number)
        return number

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(function()(ends).map(range(2), limit=2))


def test_closing_cancels_what_is_under_way(tmp_path: Path) -> None:
    values = function()(work.waits).map([str(tmp_path)] * 3, range(3), limit=2)
    wait_for(lambda: len(list(tmp_path.glob("running-*"))) == 2)
    values.close()  # before anything was asked of it
    wait_for(lambda: all(run.done() for run in MLClient().jobs.list()))
    assert {run.status for run in MLClient().jobs.list()} == {"Canceled"}
    assert len(MLClient().jobs.list()) == 2
    for wrong in (0, "2", True, None):
        with pytest.raises(ValueError, match=f"limit must be a whole number of at least 1, not {wrong!r}"):
            function()(work.waits).map([""], limit=wrong)  # type: ignore[arg-type]


def test_runs_come_as_they_end(tmp_path: Path) -> None:
    slow = function(work.waits, str(tmp_path)).submit()
    quick = function(work.even, 2).submit()
    ended = as_completed([slow, quick, quick])
    assert next(ended) == quick
    with pytest.raises(TimeoutError, match=r"1 of 1 runs have not ended after 0 s"):
        next(as_completed([slow], timeout=0))
    (tmp_path / "go").touch()
    assert [run.result() for run in ended] == [0]


def test_what_is_no_list_of_runs_is_told() -> None:
    job = function(work.even, 2)
    for wrong in ([job], job.submit()):
        with pytest.raises(
            TypeError, match=r"a list of runs, not a (FunctionJob|Run). Fix: as_completed\(\[job.submit"
        ):
            next(as_completed(wrong))  # type: ignore[arg-type]


def test_what_is_known_of_a_failure_stands_below_the_traceback() -> None:
    """Unless the exception says itself what to do."""

    def missing(more: str) -> None:
        raise FileNotFoundError(2, "No such file or directory" + more, "data.csv")

    error = function(missing, "").submit().exception()
    assert error is not None
    assert str(error.__cause__).splitlines()[-1].startswith("advice: relative paths begin at")
    assert str(pickle.loads(pickle.dumps(error.__cause__))) == str(error.__cause__)
    error = function(missing, ". Fix: make it").submit().exception()
    assert error is not None
    assert "advice" not in str(error.__cause__)


def test_the_page_runs_as_it_is_written() -> None:
    page = (Path(__file__).parents[2] / "docs/functions.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    Path("page.py").write_text(code)
    done = subprocess.run([sys.executable, "page.py"], capture_output=True, text=True, check=True)
    first, second, mapped = done.stdout.splitlines()
    assert [first, second] == re.findall(r"# (rank .*)$", code, re.MULTILINE)
    assert mapped == str([f"rank 0 of 2: {rate} 100" for rate in (0.01, 0.1, 1.0)])
