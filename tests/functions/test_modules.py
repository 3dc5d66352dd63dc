"""Which of the user's modules a call takes along, and that they are the same modules there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobsdk import function
from jobsdk.functions import payload
from jobsdk.functions.modules import Project
from tests.functions import calling
from tests.functions.project import models, work

HERE = "tests/functions/project"


def modules_of(folder: Path) -> set[str]:
    """The own modules in a staged folder."""
    root = folder / payload.FOLDER / "modules"
    return {str(path.relative_to(root)) for path in root.rglob("*.py")}


def test_a_module_brings_what_it_imports_and_nothing_else() -> None:
    found = modules_of(calling.staged(models.shapes.Point, 1))
    packages = {"tests/__init__.py", "tests/functions/__init__.py", f"{HERE}/__init__.py", f"{HERE}/models/__init__.py"}
    assert found == {*packages, f"{HERE}/models/shapes.py"}


def test_imports_within_functions_come_along_and_so_do_modules_with_made_up_names() -> None:
    found = modules_of(calling.staged(work.late))
    assert {f"{HERE}/models/later.py", f"{HERE}/plugin_one.py"} <= found
    assert calling.called(work.late).value() == "lazy"
    assert calling.called(work.named, "one").value() == "one"


def test_classes_are_one_and_the_same() -> None:
    point = models.Point(1)
    assert calling.called(work.same_classes, point, models.Color.RED).value() == [True] * 4
    assert calling.called(work.moved, point, by=4).value() == models.Point(5)
    assert calling.called(lambda: models.Color.RED).value() is models.Color.RED
    assert calling.called(work.even, 7).value() is False


def test_a_module_that_imports_jobsdk_goes_by_value_and_the_others_do_not() -> None:
    project = Project()
    assert project.submits(__name__)
    assert not project.submits(work.__name__)

    def here(base: int) -> tuple[int, bool]:
        return helper(base), isinstance(Here(), Here) and work.even(2)

    folder = calling.staged(here, 3)
    assert not any("test_modules" in name for name in modules_of(folder))
    assert calling.called(here, 3).value() == (4, True)


def helper(base: int) -> int:
    return base + 1


class Here:
    pass


@function()
def factorial(number: int) -> int:
    return number * factorial(number - 1) if number > 1 else 1


def test_a_decorated_function_calls_itself() -> None:
    assert factorial(4) == 24
    assert calling.called(factorial.fn, 5).value() == 120
    assert calling.called(lambda: factorial(3)).value() == 6


def test_what_the_code_of_the_job_has_at_its_place_is_taken_from_there(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/inside.py").write_text("import outside\nWORD = 'inside ' + outside.WORD\n")
    (tmp_path / "code/data.txt").write_text("data")
    (tmp_path / "outside.py").write_text("WORD = 'outside'\n")
    script = f"""
import sys
sys.path[:0] = [{str(tmp_path / "code")!r}, {str(tmp_path)!r}]
from pathlib import Path
from tests.functions import calling
import inside
def both():
    return inside.WORD, Path("data.txt").read_text(), Path(inside.__file__).parent == Path.cwd()
code = Path({str(tmp_path / "code")!r})
folder = calling.staged(both, code=code)
print(sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py") if "library" not in path.parts))
print(calling.called(both, code=code).value())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    listed, value = done.stdout.splitlines()
    assert listed == "['inside.py', 'jobsdk_call/call.py', 'jobsdk_call/modules/outside.py']"
    assert value == "('inside outside', 'data', True)"


def test_a_module_goes_as_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "edited.py").write_text("def version():\n    return 1\n")
    import edited  # type: ignore[import-not-found]

    assert calling.called(edited.version).value() == 1
    (tmp_path / "edited.py").write_text("def version():\n    return 'later'\n")
    assert calling.called(edited.version).value() == "later"


def test_equal_calls_share_a_folder_and_others_do_not(tmp_path: Path) -> None:
    first = calling.staged(work.even, 3)
    assert calling.staged(work.even, 3) == first
    assert calling.staged(work.even, 4) != first
    (tmp_path / "a.txt").write_text("1")
    with_code = calling.staged(work.even, 3, code=tmp_path)
    (tmp_path / "a.txt").write_text("2")
    assert calling.staged(work.even, 3, code=tmp_path) != with_code


def test_the_versions_of_what_it_uses_are_noted() -> None:
    import numpy as np

    folder = calling.staged(work.returned, np.arange(3))
    facts = json.loads((folder / payload.FOLDER / "call.json").read_text())
    assert facts["libraries"] == {"numpy": np.__version__}
