"""The file that ranks run: in bare interpreters, with what differs there, and with what comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from enum import IntEnum
from pathlib import Path

import pytest

from jobsdk import function
from jobsdk.functions import call, payload
from tests.functions import calling
from tests.functions.project import work


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter without any package."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = f"{folder}/bin/python"
    lacks = subprocess.run([python, "-c", "import cloudpickle"], capture_output=True, check=False, cwd=folder)
    assert lacks.returncode == 1
    return python


def test_neither_jobsdk_nor_cloudpickle_is_needed_there(bare: str) -> None:
    def bound() -> tuple[bool, list[str]]:
        return work.even(4), sorted({"cloudpickle", "jobsdk"} & sys.modules.keys())

    assert calling.called(bound, python=[bare]).value() == (True, ["cloudpickle"])
    # The interpreter that has cloudpickle uses its own.
    where = calling.called(lambda: sys.modules["cloudpickle"].__file__).value()
    assert payload.FOLDER not in where


def test_an_installed_cloudpickle_of_another_version_does_no_harm(bare: str, tmp_path: Path) -> None:
    (tmp_path / "cloudpickle.py").write_text("__version__ = '0.1'\n")  # without all that the pickle names
    done = calling.called(lambda: work.even(4), python=[bare], environ={"PYTHONPATH": str(tmp_path)})
    assert (done.value(), done.stderr) == (True, "")


def test_what_a_script_defines_can_be_pickled_there(tmp_path: Path) -> None:
    """As `torch.save(model)` does it; and comes back to any other process."""
    script = tmp_path / "script.py"
    script.write_text(
        "import pickle\nfrom tests.functions import calling\n"
        "class Net:\n    def __init__(self, size=3):\n        self.size = size\n"
        "def saved():\n    return pickle.loads(pickle.dumps(Net(4))).size, Net(5)\n"
        "done = calling.called(saved)\nprint(done.value()[0], type(done.value()[1]) is Net)\n"
        "open('data', 'wb').write(done.outcome.data)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=env, cwd=tmp_path)
    assert done.stdout == "4 True\n"
    import pickle

    assert pickle.loads((tmp_path / "data").read_bytes())[1].size == 5


@pytest.mark.parametrize(
    "call",
    [
        "functools.partial(saved, 4)",
        "Saves(), 4",
        "Saves().method, 4",
        "around(saved), 4",
        "saved_one, Net(4)",
        "main, 4",
        "in_processes, 4",
    ],
)
def test_what_a_script_defines_is_found_however_it_is_reached(tmp_path: Path, call: str) -> None:
    """Also where nothing of it is beside the function that is called, and in processes that it spawns."""
    script = tmp_path / "script.py"
    script.write_text(
        "import functools, multiprocessing, pickle\nfrom tests.functions import calling\n"
        "class Net:\n    def __init__(self, size):\n        self.size = size\n"
        "def saved_one(net):\n    return pickle.loads(pickle.dumps(net)).size\n"
        "def saved(size):\n    return saved_one(Net(size))\n"
        "class Saves:\n    def method(self, size):\n        return saved(size)\n    __call__ = method\n"
        "def around(fn):\n    def inner(*args):\n        return fn(*args)\n"
        "    inner.__qualname__ = inner.__module__ = 'elsewhere'\n    return inner\n"
        "def main(size):\n    return pickle.loads(pickle.dumps(main)) is main and size\n"
        "def in_processes(size):\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        return pool.map_async(saved_one, [Net(size)]).get(200)[0]\n"
        f"print(calling.called({call}).value())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=env, cwd=tmp_path)
    assert done.stdout == "4\n", done.stderr


def test_caches_of_a_script_travel_and_those_of_modules_bring_their_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import functools\n@functools.lru_cache\ndef cached(x):\n    return x + 1\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import functools\nimport mine\nfrom tests.functions import calling\n"
        "@functools.lru_cache(maxsize=3)\ndef cached(x):\n    return [x]\n"
        "class Held:\n    @functools.cached_property\n    def one(self):\n        return object()\n"
        "def uses():\n    held = Held()\n"
        "    return cached(1) is cached(1), cached.cache_info().maxsize, held.one is held.one\n"
        "print(calling.called(uses).value(), calling.called(mine.cached, 1).value())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=env, cwd=tmp_path)
    assert done.stdout == "(True, 3, True) 2\n", done.stderr


def test_what_is_imported_with_the_call_costs_nothing_at_its_end() -> None:
    import gc

    def frozen() -> int:
        return gc.get_freeze_count()

    assert calling.called(frozen).value() > 1000


def test_another_python_is_told_before_anything_is_loaded() -> None:
    folder = calling.staged(work.even, 4)
    calling.change_facts(folder, python="3.7")
    done = calling.Called(folder, [sys.executable], folder, {})
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert done.code == 78
    assert f"the function was sent from Python 3.7 and cannot run on Python {here}" in done.stderr
    assert "Fix: an environment with Python 3.7 on the compute, or submit with Python" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_versions_of_libraries_are_told_once() -> None:
    import numpy as np

    folder = calling.staged(work.returned, np.float64(1.5))
    calling.change_facts(folder, libraries={"numpy": "0.9"})
    told = f"jobsdk: warning: numpy is {np.__version__} here and 0.9 where the function comes from\n"
    first = calling.Called(folder, [sys.executable], folder, {"RANK": "0"})
    assert (first.value(), first.stderr) == (1.5, told)
    assert calling.Called(folder, [sys.executable], folder, {"RANK": "1"}).stderr == ""


def test_a_module_that_is_missing_there_is_named(bare: str) -> None:
    import numpy as np

    done = calling.called(work.returned, np.zeros(2), python=[bare])
    assert done.code == 78
    assert done.stderr.splitlines()[-1].startswith("jobsdk: returned needs the module numpy")
    assert "Fix: install it in the job's environment, or submit with code=FOLDER that has it" in done.stderr


def test_the_lines_of_code_that_is_only_here_are_in_tracebacks(tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text(
        "from tests.functions import calling\n"
        "def fails(x):\n    return 1 // x  # the line of it\n"
        "print(calling.called(fails, 0).stderr)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})  # fmt: skip
    lines = done.stdout.strip().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith(f'  File "{script}", line 3, in fails')
    assert "    return 1 // x  # the line of it" in lines
    assert lines[-1] == "ZeroDivisionError: integer division or modulo by zero"


@pytest.mark.parametrize(("value", "code"), [(None, 0), (0, 0), (3, 3), ("no data", 1)])
def test_sys_exit_gives_the_code_of_the_rank(value: object, code: int) -> None:
    done = calling.called(sys.exit, value)
    assert done.code == code
    assert done.stderr == ("no data\n" if value == "no data" else "")
    assert done.outcome is not None
    assert done.outcome.facts["outcome"] == ("exited" if code else "returned")


def test_values_that_cannot_come_back_are_told() -> None:
    import threading

    done = calling.called(lambda: {"lock": threading.Lock()})
    assert (done.code, done.stderr.count("\n")) == (1, 1)
    assert "what the function returned, of type dict, cannot be pickled: TypeError: cannot pickle" in done.stderr
    done = calling.called(bytes, 65 << 20)
    assert done.code == 1
    assert "what the function returned takes 68 MB, and 67 MB come back. Fix: write it to an output" in done.stderr


def test_exceptions_in_groups_and_with_causes_come_back() -> None:
    done = calling.called(work.caused)
    assert done.outcome is not None
    facts = done.outcome.facts
    assert (done.code, facts["type"], facts["message"]) == (1, "WrongShape", "no shape")
    assert facts["traceback"] in done.stderr
    assert "ZeroDivisionError" in facts["traceback"]
    assert "direct cause" in facts["traceback"]
    assert "call.py" not in facts["traceback"]


def test_a_call_by_hand_needs_no_job(tmp_path: Path) -> None:
    folder = calling.staged(work.even, 4)
    argv = [sys.executable, folder / payload.FOLDER / "call.py"]
    subprocess.run(argv, cwd=tmp_path, env={"PATH": os.environ["PATH"]}, check=True)
    assert list(tmp_path.iterdir()) == []


def test_a_module_that_only_the_function_imports_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "mine_alone" not in sys.modules
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_alone.py").write_text("WORD = 'mine'\n")

    def word() -> str:
        import mine_alone  # type: ignore[import-not-found]

        return str(mine_alone.WORD)

    assert calling.called(word).value() == "mine"


@function()
def factorial(number: int) -> int:
    return number * factorial(number - 1) if number > 1 else 1


def test_decorated_functions_and_the_helpers_for_ranks_need_no_jobsdk_either(bare: str) -> None:
    def ranks(number: int) -> tuple[int, int]:
        from jobsdk.train import get_context

        return get_context().get_world_rank(), factorial(number)

    environ = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert calling.called(ranks, 4, python=[bare], environ=environ).value() == (3, 24)


_TWICE: list[int] = []
_PLAIN = [None, True, 0, -(1 << 8000), 0.1, -0.0, 1e-320, float("inf"), "ü\0\n", [], {}, {"": [{"a": [1, 2.0, "3"]}]}]
_OTHERS = [
    1 << 9000, "\ud83d\ude00", (1,), {1: 2}, b"x", {1}, 1j, [_TWICE, _TWICE], {"a": [()]}, {"\udc80": 1},
    IntEnum("E", "A").A,
]  # fmt: skip


@pytest.mark.parametrize("value", _PLAIN, ids=lambda value: ascii(value)[:20])
def test_plain_data_travels_as_json(value: object) -> None:
    data = call._as_json(value)
    assert data is not None
    assert repr(json.loads(data)) == repr(value)


@pytest.mark.parametrize("value", _OTHERS, ids=lambda value: ascii(value)[:20])
def test_what_json_would_change_does_not(value: object) -> None:
    assert call._as_json(value) is None


def test_nor_does_what_is_too_deep_for_it_or_holds_itself() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    loop: list[object] = []
    loop.append(loop)
    assert call._as_json(deep) is None
    assert call._as_json(loop) is None
