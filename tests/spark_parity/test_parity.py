"""Every line of the table in docs/torch-distributor.md, on PySpark's class and on ours."""

from __future__ import annotations

import functools
import inspect
import json
import os
import pathlib
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from jobsdk import JobFailed, JobsdkError, MLClient, TorchDistributor
from tests.bootstrap.runs import wait_for
from tests.spark_parity.conftest import GPUS, Outcome

PAGE = Path(__file__).parents[2] / "docs" / "torch-distributor.md"
ROWS: set[str] = set()
T = TypeVar("T", bound=Callable[..., None])


def row(behaviour: str) -> Callable[[T], T]:
    """The test is that of a line of the table."""
    ROWS.add(behaviour)
    return lambda test: test


class Both(NamedTuple):
    theirs: Any
    ours: Any


@pytest.fixture
def both(spark: Any) -> Both:
    """The two classes."""
    return classes()


def classes() -> Both:
    from pyspark.ml.torch.distributor import TorchDistributor as Theirs

    return Both(Theirs, TorchDistributor)


def outcome(cls: Any, folder: Path, main: Any, *args: Any, processes: int = 1, **options: Any) -> Outcome:
    """Of one call of `run`, in a folder."""
    return Outcome(lambda: cls(processes, use_gpu=False, **options).run(main, *args), folder)


def raised(kind: type[BaseException], *calls: Callable[[], Any]) -> list[str]:
    texts = []
    for call in calls:
        with pytest.raises(kind) as error:
            call()
        texts.append(str(error.value))
    return texts


def test_the_table_has_these_rows() -> None:
    lines = re.findall(r"^\| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    assert lines[:2] == ["behaviour", "---"]
    assert set(lines[2:]) == ROWS
    assert len(lines[2:]) == len(ROWS)


# -- arguments ---------------------------------------------------------------------------------------------------------


@row("parameters and their defaults")
def test_defaults(both: Both) -> None:
    names = ["num_processes", "local_mode", "use_gpu"]
    found = [{name: inspect.signature(one).parameters[name].default for name in names} for one in both]
    assert found == [{"num_processes": 1, "local_mode": True, "use_gpu": True}] * 2
    extra = inspect.signature(both.ours).parameters["compute"]
    assert extra.kind is extra.KEYWORD_ONLY
    assert extra.default is None


@row("attributes")
def test_attributes(both: Both) -> None:
    for one in both:
        made = one(3, False, False)
        assert (made.num_processes, made.local_mode, made.use_gpu, made.num_tasks) == (3, False, False, 3)


@row("`num_processes` below 1")
def test_less_than_one(both: Both) -> None:
    for count in (0, -1):
        texts = raised(ValueError, *(functools.partial(one, count, use_gpu=False) for one in both))
        assert all("num_processes has to be a positive integer" in text for text in texts)


@row('`num_processes="2"`')
def test_a_text_for_a_number(both: Both) -> None:
    raised(TypeError, *(functools.partial(one, "2", use_gpu=False) for one in both))


@row("`num_processes=1.5`, `True`")
def test_a_fraction(both: Both) -> None:
    for count in (1.5, True):
        assert both.theirs(count, use_gpu=False).num_processes is count
        raised(TypeError, functools.partial(both.ours, count, use_gpu=False))


@row('`local_mode="no"`, `use_gpu=1`')
def test_no_flags(both: Both) -> None:
    assert both.theirs(1, local_mode="no", use_gpu=False).local_mode == "no"
    raised(TypeError, lambda: both.ours(1, local_mode="no", use_gpu=False), lambda: both.ours(1, use_gpu=1))
    raised(RuntimeError, lambda: both.theirs(1, use_gpu=1))  # for want of GPUs: it counts as true


@row("`use_gpu` where there are no GPUs")
def test_no_gpus(both: Both) -> None:
    raised(RuntimeError, *(functools.partial(one, 1) for one in both))


@row("`use_gpu` on a cluster whose tasks have no GPUs")
def test_no_gpus_of_tasks(both: Both) -> None:
    texts = raised(RuntimeError, *(functools.partial(one, 1, local_mode=False) for one in both))
    assert all("spark.task.resource.gpu.amount" in text for text in texts)


@pytest.fixture
def two_for_each_task(spark: Any) -> Any:
    spark.conf.set("spark.task.resource.gpu.amount", "2")
    yield
    spark.conf.unset("spark.task.resource.gpu.amount")


@row("several GPUs for each task")
def test_tasks_with_two_gpus(both: Both, two_for_each_task: None) -> None:
    assert [one(4, local_mode=False).num_tasks for one in both] == [2, 2]


@row("processes that the GPUs of a task do not divide")
def test_an_uneven_number(both: Both, two_for_each_task: None) -> None:
    raised(RuntimeError, *(functools.partial(one, 3, local_mode=False) for one in both))


# -- one function, looked at from all sides ----------------------------------------------------------------------------


def _probe() -> Callable[..., Any]:
    """A function within a function travels by value with PySpark, too."""
    names = (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GROUP_RANK TORCHELASTIC_RUN_ID "
        "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE "
        "OMP_NUM_THREADS CUDA_VISIBLE_DEVICES"
    ).split()

    def probe(first: int, folder: str, *, second: int = 0) -> dict[str, Any]:
        import os
        import sys
        import time

        rank = os.environ["RANK"]
        sys.stdout.write(f"early {rank}\n")  # in one piece: torchrun's processes write without a buffer
        sys.stdout.flush()
        if "jobsdk" in sys.argv[0]:
            deadline = time.monotonic() + 60  # what was written is seen meanwhile, or the test fails
            while not os.path.exists(folder + "/seen") and time.monotonic() < deadline:
                time.sleep(0.01)
        elif rank == "1" and os.environ["LOCAL_RANK"] == "1":
            # PySpark's processes all write this file: let rank 1's be the last value.
            value = os.path.join(os.path.dirname(sys.argv[0]), "output.pickle")
            while not os.path.exists(value) or not os.path.getsize(value):
                time.sleep(0.01)
        open(folder + "/ended-" + rank, "w").close()
        environment = {name: os.environ.get(name) for name in names}
        return {"args": (first, second), "environment": environment, "cwd": os.getcwd(), "path": list(sys.path)}

    return probe


def probed(cls: Any, folder: Path, **options: Any) -> Outcome:
    """Its run, and of each piece of output whether a process had ended before it was shown."""

    def mark(text: str) -> str:
        has_ended = any(folder.glob("ended-*"))
        if "early" in text:
            (folder / "seen").touch()
        return "late" if has_ended else "early"

    function = _probe()
    return Outcome(lambda: cls(2, use_gpu=False, **options).run(function, 1, str(folder), second=2), folder, mark)


@pytest.fixture(scope="module")
def local(spark: Any, quiet: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Of each class one run with local_mode."""
    folders = [tmp_path_factory.mktemp(name) for name in ("theirs", "ours")]
    quiet.setenv("JOBSDK_HOME", str(tmp_path_factory.mktemp("home")))
    quiet.setenv("CUDA_VISIBLE_DEVICES", "7")
    found = Both(*(probed(cls, folder) for cls, folder in zip(classes(), folders, strict=True)))
    quiet.delenv("CUDA_VISIBLE_DEVICES")
    assert [one.error for one in found] == [None, None]
    return found


@pytest.fixture(scope="module")
def on_cluster(spark: Any, quiet: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The same on the session's tasks."""
    folders = [tmp_path_factory.mktemp(name) for name in ("theirs", "ours")]
    quiet.setenv("JOBSDK_HOME", str(tmp_path_factory.mktemp("home")))
    made = zip(classes(), folders, strict=True)
    found = Both(*(probed(cls, folder, local_mode=False) for cls, folder in made))
    assert [one.error for one in found] == [None, None]
    return found


@row("positional and keyword arguments of a function")
def test_arguments(local: Both, on_cluster: Both) -> None:
    assert [one.value["args"] for one in (*local, *on_cluster)] == [(1, 2)] * 4


@row("the value of a function")
def test_whose_value(local: Both, on_cluster: Both) -> None:
    assert [one.value["environment"]["RANK"] for one in local] == ["1", "0"]
    assert [one.value["environment"]["RANK"] for one in on_cluster] == ["0", "0"]


@row("the environment of a process")
def test_environment(local: Both) -> None:
    theirs, ours = (one.value["environment"] for one in local)
    assert sorted(ours) == sorted(theirs)
    assert all(ours.values())
    assert all(theirs.values())
    assert [one["WORLD_SIZE"] for one in (theirs, ours)] == ["2", "2"]
    assert [one["LOCAL_RANK"] == one["RANK"] for one in (theirs, ours)] == [True, True]


@row("the working directory")
def test_working_directory(local: Both) -> None:
    assert [re.sub(r"\d+$", "", Path(one.value["cwd"]).name) for one in local] == ["theirs", "ours"]


@row("modules beside the caller's script")
def test_modules(local: Both) -> None:
    assert [one.value["cwd"] in one.value["path"] for one in local] == [False, True]


@row("output of the processes")
def test_output(local: Both, on_cluster: Both) -> None:
    theirs, ours = ([line for line in one.lines if "early" in line] for one in local)
    assert sorted(theirs) == ["early 0", "early 1"]
    assert sorted(ours) == ["[rank 0] early 0", "[rank 1] early 1"]
    assert sorted(line for line in on_cluster.ours.lines if "early" in line) == sorted(ours)


@row("when it is shown")
def test_when_it_is_shown(local: Both, on_cluster: Both) -> None:
    assert set(local.theirs.marks) == {"late"}
    assert local.ours.marks[0] == "early"
    assert on_cluster.ours.marks[0] == "early"


@row("`CUDA_VISIBLE_DEVICES` without `use_gpu`, with `local_mode`")
def test_gpus_that_are_not_asked_for(local: Both) -> None:
    assert [one.value["environment"]["CUDA_VISIBLE_DEVICES"] for one in local] == ["7", "7"]


@row("`CUDA_VISIBLE_DEVICES` without `use_gpu`, on a cluster")
def test_gpus_that_are_not_asked_for_of_a_cluster(on_cluster: Both) -> None:
    assert [one.value["environment"]["CUDA_VISIBLE_DEVICES"] for one in on_cluster] == ["", ""]


@row("ranks on a cluster without GPUs")
def test_ranks_of_a_cluster(on_cluster: Both) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    found = [[one.value["environment"][name] for name in names] for one in on_cluster]
    assert found == [["0", "0", "2", "1", "0"]] * 2


# -- scripts -----------------------------------------------------------------------------------------------------------

SCRIPT = """import json, os, sys
told = json.dumps([os.environ["RANK"], sys.argv[1:], os.getcwd(), sys.path[0]])
os.write(1, f"told {told}\\n".encode())
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "project" / "my train.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


@row("arguments of a script")
@row("what a script gives")
def test_a_script(both: Both, script: Path, tmp_path: Path) -> None:
    words = (0, "--learning-rate=1e-3", "${{inputs.x}} $HOME 'a' \"b\"", 64)
    for one in both:
        found = outcome(one, tmp_path, "project/my train.py", *words, processes=2)
        assert found.error is None
        assert found.value is None
        told = sorted(line.partition("told ")[2] for line in found.lines if "told" in line)
        assert [json.loads(line) for line in told] == [
            [rank, [str(word) for word in words], str(tmp_path), str(script.parent)] for rank in ("0", "1")
        ]


@row("keyword arguments for a script")
def test_keyword_arguments_for_a_script(both: Both, script: Path) -> None:
    raised(ValueError, *(functools.partial(one(2, use_gpu=False).run, str(script), 0, lr=1) for one in both))


@row("a script that exits with 7")
def test_a_script_that_fails(both: Both, script: Path, tmp_path: Path) -> None:
    theirs, ours = (outcome(one, tmp_path, str(script), 7, processes=2) for one in both)
    assert (theirs.value, theirs.error) == (None, None)
    assert isinstance(ours.error, JobFailed)
    assert ours.error.report["exit_code"] == 7


@row("a script that is not there")
@row("a script given as a `pathlib.Path`")
def test_paths_of_scripts(both: Both, script: Path, tmp_path: Path) -> None:
    theirs, ours = (outcome(one, tmp_path, "no.py") for one in both)
    assert (theirs.value, theirs.error) == (None, None)
    assert any("No such file" in line for line in theirs.lines)
    assert isinstance(ours.error, JobsdkError)
    assert str(tmp_path / "no.py") in str(ours.error)
    path = pathlib.Path(script)
    theirs, ours = (outcome(one, tmp_path, path, 0) for one in both)
    assert isinstance(theirs.error, RuntimeError)
    assert (ours.value, ours.error) == (None, None)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def _failing() -> Callable[[], None]:
    def failing() -> None:
        raise KeyError("what was wrong")

    return failing


@row("a function that raises")
def test_a_function_that_raises(both: Both, tmp_path: Path) -> None:
    function = _failing()
    theirs, ours = (outcome(one, tmp_path, function) for one in both)
    assert isinstance(theirs.error, RuntimeError)
    assert theirs.error.__cause__ is None
    assert "what was wrong" not in str(theirs.error)
    assert isinstance(ours.error, KeyError)
    assert "in failing" in str(ours.error.__cause__)


@row("a function that cannot be pickled")
def test_a_function_that_cannot_travel(both: Both, tmp_path: Path) -> None:
    lock = threading.Lock()

    def train() -> Any:
        return lock

    theirs, ours = (outcome(one, tmp_path, train) for one in both)
    assert isinstance(theirs.error, TypeError)
    assert isinstance(ours.error, JobsdkError)
    assert "train.lock" in str(ours.error)


def _endless() -> Callable[[str], None]:
    def endless(folder: str) -> None:
        import os
        import time

        with open(f"{folder}/pid-{os.environ['RANK']}.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename(file.name, file.name[:-5])
        while True:
            time.sleep(0.1)

    return endless


@row("Ctrl-C")
def test_an_interrupt(both: Both, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    function = _endless()
    for number, one in enumerate(both):
        folder = tmp_path / str(number)
        folder.mkdir()

        def interrupt(folder: Path = folder) -> None:
            wait_for(lambda: len(list(folder.glob("pid-?"))) == 2)
            os.kill(os.getpid(), signal.SIGINT)

        helper = threading.Thread(target=interrupt)
        helper.start()
        found = outcome(one, folder, function, str(folder), processes=2)
        helper.join()
        assert isinstance(found.error, KeyboardInterrupt)
        pids = [path.read_text() for path in folder.glob("pid-?")]
        wait_for(functools.partial(_have_ended, pids))
    (run,) = MLClient().jobs.list()
    assert run.status == "Canceled"
    assert f"the run {run.name} was interrupted: Canceled\n" in capsys.readouterr().err


def _have_ended(pids: list[str]) -> bool:
    return not any(_runs(pid) for pid in pids)


def _runs(pid: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@row("TLS (`spark.ssl.enabled`)")
def test_encryption(both: Both, spark: Any, tmp_path: Path) -> None:
    spark.conf.set("spark.ssl.enabled", "true")
    try:
        for one in both:
            found = outcome(one, tmp_path, print, local_mode=False)
            assert isinstance(found.error, RuntimeError)
            assert "pytorch.spark.distributor.ignoreSsl" in str(found.error)
    finally:
        spark.conf.unset("spark.ssl.enabled")


# -- the example -------------------------------------------------------------------------------------------------------


@row("the example, a function")
def test_the_example(both: Both, tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    imports = "from jobsdk import TorchDistributor"
    assert imports in example
    losses = []
    for line in ("from pyspark.ml.torch.distributor import TorchDistributor", imports):
        names: dict[str, Any] = {"__name__": "__main__"}
        code = compile(example.replace(imports, line), "example.py", "exec")
        found = Outcome(functools.partial(exec, code, names), tmp_path)
        assert found.error is None, found.lines
        losses.append(names["loss"])
    theirs, ours = losses
    assert 0 < ours < 1
    assert ours == pytest.approx(theirs)


# -- with another session, or none: these come last --------------------------------------------------------------------


@row("without a Spark session")
def test_without_a_session(stopped: None, tmp_path: Path) -> None:
    theirs, ours = classes()
    raised(RuntimeError, lambda: theirs(1, use_gpu=False))
    assert ours(1, use_gpu=False).run(abs, -3) == 3
    with pytest.raises(JobsdkError, match="no SparkSession"):
        ours(1, local_mode=False, use_gpu=False)


def _mask() -> Callable[[], Any]:
    def mask() -> Any:
        import os

        os.write(1, f"mask {os.environ['CUDA_VISIBLE_DEVICES']}\n".encode())
        return os.environ["CUDA_VISIBLE_DEVICES"]

    return mask


@row("more processes than the driver has GPUs, with `local_mode`")
@row("GPUs with `local_mode`")
def test_the_gpus_of_the_driver(spark_with_gpus: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs, ours = (one(3) for one in classes())
    assert (theirs.num_processes, ours.num_processes) == (2, 2)
    assert "it becomes 2" in caplog.text
    assert "GPUs" in caplog.text
    function = _mask()
    for made in (theirs, ours):
        found = Outcome(functools.partial(made.run, function), tmp_path)
        assert found.error is None
        assert sorted(found.value.split(",")) == sorted(GPUS)
        assert len({line.partition("mask ")[2] for line in found.lines if "mask " in line}) == 1
    assert ours.run(function) == ",".join(GPUS)
    assert classes().ours(1).run(function) == GPUS[0]
