"""Every line of the table in docs/torch-distributor.md, on PySpark's class and on ours.

What is expected of PySpark's class is tested with `make parity`: the same tests, for the other class.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
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


class Distributor(NamedTuple):
    """A class, and whether it is ours."""

    cls: Any
    is_ours: bool


@pytest.fixture(params=[pytest.param("theirs", marks=pytest.mark.parity), "ours"])
def tested(request: pytest.FixtureRequest) -> Distributor:
    """Each of the two classes."""
    if request.param == "ours":
        return Distributor(TorchDistributor, True)
    from pyspark.ml.torch.distributor import TorchDistributor as Theirs

    return Distributor(Theirs, False)


@pytest.fixture
def one(tested: Distributor, spark: Any) -> Any:
    """The class, where there is a session."""
    return tested.cls


@pytest.fixture
def ours(tested: Distributor) -> bool:
    return tested.is_ours


def outcome(cls: Any, folder: Path, main: Any, *args: Any, processes: int = 1, **options: Any) -> Outcome:
    """Of one call of `run`, in a folder."""
    return Outcome(lambda: cls(processes, use_gpu=False, **options).run(main, *args), folder)


def raised(kind: type[BaseException], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


def test_the_table_has_these_rows() -> None:
    lines = re.findall(r"^\| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    assert lines[:2] == ["behaviour", "---"]
    assert set(lines[2:]) == ROWS
    assert len(lines[2:]) == len(ROWS)


# -- arguments ---------------------------------------------------------------------------------------------------------


@row("parameters and their defaults")
def test_defaults(one: Any, ours: bool) -> None:
    parameters = inspect.signature(one).parameters
    found = {name: parameters[name].default for name in ("num_processes", "local_mode", "use_gpu")}
    assert found == {"num_processes": 1, "local_mode": True, "use_gpu": True}
    if ours:
        assert parameters["compute"].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters["compute"].default is None


@row("attributes")
def test_attributes(one: Any) -> None:
    made = one(3, False, False)
    assert (made.num_processes, made.local_mode, made.use_gpu, made.num_tasks) == (3, False, False, 3)


@row("`num_processes` below 1")
@pytest.mark.parametrize("count", [0, -1])
def test_less_than_one(one: Any, count: int) -> None:
    assert "num_processes has to be a positive integer" in raised(ValueError, lambda: one(count, use_gpu=False))


@row('`num_processes="2"`')
def test_a_text_for_a_number(one: Any) -> None:
    raised(TypeError, lambda: one("2", use_gpu=False))


@row("`num_processes=1.5`, `True`")
@pytest.mark.parametrize("count", [1.5, True])
def test_a_fraction(one: Any, ours: bool, count: Any) -> None:
    if ours:
        raised(TypeError, lambda: one(count, use_gpu=False))
    else:
        assert one(count, use_gpu=False).num_processes is count


@row('`local_mode="no"`, `use_gpu=1`')
def test_no_flags(one: Any, ours: bool) -> None:
    if ours:
        raised(TypeError, lambda: one(1, local_mode="no", use_gpu=False))
    else:
        assert one(1, local_mode="no", use_gpu=False).local_mode == "no"
    raised(TypeError if ours else RuntimeError, lambda: one(1, use_gpu=1))  # theirs for want of GPUs: it counts as true


@row("`use_gpu` where there are no GPUs")
def test_no_gpus(one: Any) -> None:
    raised(RuntimeError, lambda: one(1))


@row("`use_gpu` on a cluster whose tasks have no GPUs")
def test_no_gpus_of_tasks(one: Any) -> None:
    assert "spark.task.resource.gpu.amount" in raised(RuntimeError, lambda: one(1, local_mode=False))


@pytest.fixture
def two_for_each_task(spark: Any) -> Any:
    spark.conf.set("spark.task.resource.gpu.amount", "2")
    yield
    spark.conf.unset("spark.task.resource.gpu.amount")


@row("several GPUs for each task")
def test_tasks_with_two_gpus(one: Any, two_for_each_task: None) -> None:
    assert one(4, local_mode=False).num_tasks == 2


@row("processes that the GPUs of a task do not divide")
def test_an_uneven_number(one: Any, two_for_each_task: None) -> None:
    raised(RuntimeError, lambda: one(3, local_mode=False))


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
def runs(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Distributor, bool], Outcome]:
    """Of each class one run on this machine and one on the session's tasks, when a test first asks for it."""

    @functools.cache
    def run(tested: Distributor, local_mode: bool) -> Outcome:
        folder = tmp_path_factory.mktemp("ours" if tested.is_ours else "theirs")
        with pytest.MonkeyPatch.context() as patch:
            if local_mode:
                patch.setenv("CUDA_VISIBLE_DEVICES", "7")
            found = probed(tested.cls, folder, local_mode=local_mode)
        assert found.error is None
        return found

    return run


@pytest.fixture
def local(tested: Distributor, runs: Callable[[Distributor, bool], Outcome]) -> Outcome:
    """Of a run with local_mode."""
    return runs(tested, True)


@pytest.fixture
def on_cluster(tested: Distributor, runs: Callable[[Distributor, bool], Outcome]) -> Outcome:
    """The same on the session's tasks."""
    return runs(tested, False)


@row("positional and keyword arguments of a function")
def test_arguments(local: Outcome, on_cluster: Outcome) -> None:
    assert [one.value["args"] for one in (local, on_cluster)] == [(1, 2)] * 2


@row("the value of a function")
def test_whose_value(local: Outcome, on_cluster: Outcome, ours: bool) -> None:
    assert local.value["environment"]["RANK"] == ("0" if ours else "1")
    assert on_cluster.value["environment"]["RANK"] == "0"


@row("the environment of a process")
def test_environment(local: Outcome) -> None:
    environment = local.value["environment"]
    assert all(environment.values()), environment
    assert environment["WORLD_SIZE"] == "2"
    assert environment["LOCAL_RANK"] == environment["RANK"]


@row("the working directory")
def test_working_directory(local: Outcome, ours: bool) -> None:
    assert re.sub(r"\d+$", "", Path(local.value["cwd"]).name) == ("ours" if ours else "theirs")


@row("modules beside the caller's script")
def test_modules(local: Outcome, ours: bool) -> None:
    assert (local.value["cwd"] in local.value["path"]) is ours


@row("output of the processes")
def test_output(local: Outcome, on_cluster: Outcome, ours: bool) -> None:
    expected = ["[rank 0] early 0", "[rank 1] early 1"] if ours else ["early 0", "early 1"]
    assert sorted(line for line in local.lines if "early" in line) == expected
    if ours:
        assert sorted(line for line in on_cluster.lines if "early" in line) == expected


@row("when it is shown")
def test_when_it_is_shown(local: Outcome, on_cluster: Outcome, ours: bool) -> None:
    if ours:
        assert (local.marks[0], on_cluster.marks[0]) == ("early", "early")
    else:
        assert set(local.marks) == {"late"}


@row("`CUDA_VISIBLE_DEVICES` without `use_gpu`, with `local_mode`")
def test_gpus_that_are_not_asked_for(local: Outcome) -> None:
    assert local.value["environment"]["CUDA_VISIBLE_DEVICES"] == "7"


@row("`CUDA_VISIBLE_DEVICES` without `use_gpu`, on a cluster")
def test_gpus_that_are_not_asked_for_of_a_cluster(on_cluster: Outcome) -> None:
    assert on_cluster.value["environment"]["CUDA_VISIBLE_DEVICES"] == ""


@row("ranks on a cluster without GPUs")
def test_ranks_of_a_cluster(on_cluster: Outcome) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    assert [on_cluster.value["environment"][name] for name in names] == ["0", "0", "2", "1", "0"]


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
def test_a_script(one: Any, script: Path, tmp_path: Path) -> None:
    words = (0, "--learning-rate=1e-3", "${{inputs.x}} $HOME 'a' \"b\"", 64)
    found = outcome(one, tmp_path, "project/my train.py", *words, processes=2)
    assert found.error is None
    assert found.value is None
    told = sorted(line.partition("told ")[2] for line in found.lines if "told" in line)
    assert [json.loads(line) for line in told] == [
        [rank, [str(word) for word in words], str(tmp_path), str(script.parent)] for rank in ("0", "1")
    ]


@row("keyword arguments for a script")
def test_keyword_arguments_for_a_script(one: Any, script: Path) -> None:
    raised(ValueError, lambda: one(2, use_gpu=False).run(str(script), 0, lr=1))


@row("a script that exits with 7")
def test_a_script_that_fails(one: Any, ours: bool, script: Path, tmp_path: Path) -> None:
    found = outcome(one, tmp_path, str(script), 7, processes=2)
    if ours:
        assert isinstance(found.error, JobFailed)
        assert found.error.report["exit_code"] == 7
    else:
        assert (found.value, found.error) == (None, None)


@row("a script that is not there")
def test_a_script_that_is_not_there(one: Any, ours: bool, tmp_path: Path) -> None:
    found = outcome(one, tmp_path, "no.py")
    if ours:
        assert isinstance(found.error, JobsdkError)
        assert str(tmp_path / "no.py") in str(found.error)
    else:
        assert (found.value, found.error) == (None, None)
        assert any("No such file" in line for line in found.lines)


@row("a script given as a `pathlib.Path`")
def test_paths_of_scripts(one: Any, ours: bool, script: Path, tmp_path: Path) -> None:
    found = outcome(one, tmp_path, script, 0)
    if ours:
        assert (found.value, found.error) == (None, None)
    else:
        assert isinstance(found.error, RuntimeError)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def _failing() -> Callable[[], None]:
    def failing() -> None:
        raise KeyError("what was wrong")

    return failing


@row("a function that raises")
def test_a_function_that_raises(one: Any, ours: bool, tmp_path: Path) -> None:
    error = outcome(one, tmp_path, _failing()).error
    if ours:
        assert isinstance(error, KeyError)
        assert "in failing" in str(error.__cause__)
    else:
        assert isinstance(error, RuntimeError)
        assert error.__cause__ is None
        assert "what was wrong" not in str(error)


@row("a function that cannot be pickled")
def test_a_function_that_cannot_travel(one: Any, ours: bool, tmp_path: Path) -> None:
    lock = threading.Lock()

    def train() -> Any:
        return lock

    error = outcome(one, tmp_path, train).error
    if ours:
        assert isinstance(error, JobsdkError)
        assert "train.lock" in str(error)
    else:
        assert isinstance(error, TypeError)


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
def test_an_interrupt(one: Any, ours: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        wait_for(lambda: len(list(tmp_path.glob("pid-?"))) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    found = outcome(one, tmp_path, _endless(), str(tmp_path), processes=2)
    helper.join()
    assert isinstance(found.error, KeyboardInterrupt)
    pids = [path.read_text() for path in tmp_path.glob("pid-?")]
    wait_for(functools.partial(_have_ended, pids))
    if ours:
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
def test_encryption(one: Any, spark: Any, tmp_path: Path) -> None:
    spark.conf.set("spark.ssl.enabled", "true")
    try:
        found = outcome(one, tmp_path, print, local_mode=False)
        assert isinstance(found.error, RuntimeError)
        assert "pytorch.spark.distributor.ignoreSsl" in str(found.error)
    finally:
        spark.conf.unset("spark.ssl.enabled")


# -- the example -------------------------------------------------------------------------------------------------------


IMPORT = "from jobsdk import TorchDistributor"


def loss_of_the_example(imported: str, folder: Path) -> float:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert IMPORT in example
    names: dict[str, Any] = {"__name__": "__main__"}
    code = compile(example.replace(IMPORT, imported), "example.py", "exec")
    found = Outcome(functools.partial(exec, code, names), folder)
    assert found.error is None, found.lines
    return float(names["loss"])


@pytest.mark.framework("torch")
def test_our_example(spark: Any, tmp_path: Path) -> None:
    assert 0 < loss_of_the_example(IMPORT, tmp_path) < 1


@row("the example, a function")
@pytest.mark.parity
def test_the_example(spark: Any, tmp_path: Path) -> None:
    ours = loss_of_the_example(IMPORT, tmp_path)
    theirs = loss_of_the_example("from pyspark.ml.torch.distributor import TorchDistributor", tmp_path)
    assert 0 < ours < 1
    assert ours == pytest.approx(theirs)


# -- with another session, or none: these come last --------------------------------------------------------------------


@row("without a Spark session")
def test_without_a_session(tested: Distributor, stopped: None, tmp_path: Path) -> None:
    if tested.is_ours:
        assert tested.cls(1, use_gpu=False).run(abs, -3) == 3
        assert "no SparkSession" in raised(JobsdkError, lambda: tested.cls(1, local_mode=False, use_gpu=False))
    else:
        raised(RuntimeError, lambda: tested.cls(1, use_gpu=False))


def _mask() -> Callable[[], Any]:
    def mask() -> Any:
        import os

        os.write(1, f"mask {os.environ['CUDA_VISIBLE_DEVICES']}\n".encode())
        return os.environ["CUDA_VISIBLE_DEVICES"]

    return mask


@row("more processes than the driver has GPUs, with `local_mode`")
@row("GPUs with `local_mode`")
def test_the_gpus_of_the_driver(
    tested: Distributor, spark_with_gpus: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = tested.cls(3)
    assert made.num_processes == 2
    function = _mask()
    found = Outcome(functools.partial(made.run, function), tmp_path)
    assert found.error is None
    assert sorted(found.value.split(",")) == sorted(GPUS)
    assert len({line.partition("mask ")[2] for line in found.lines if "mask " in line}) == 1
    if tested.is_ours:
        assert "it becomes 2" in caplog.text
        assert "GPUs" in caplog.text
        assert found.value == ",".join(GPUS)
        assert tested.cls(1).run(function) == GPUS[0]
