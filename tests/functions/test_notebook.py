"""Functions of a notebook's cells, and errors as a notebook shows them."""

from __future__ import annotations

from tests.notebook.conftest import kernel as kernel
from tests.notebook.kernel import Kernel


def test_functions_of_cells(kernel: Kernel) -> None:
    """They refer to other cells, import inside and outside, and are sent as they are at that moment."""
    assert kernel.run("import json\nfrom jobsdk import function\nclass Point:\n    x = 1").error is None
    kernel.run("def helper(x):\n    return json.dumps(x + Point.x)")
    kernel.run("def work(x):\n    import textwrap\n    return textwrap.indent(helper(x), '> ')")
    assert kernel.run("function(work, 1).submit().result()").result == "'> 2'"
    kernel.run("Point.x = 5")
    assert kernel.run("function(work, 1).submit().result()").result == "'> 6'"
    assert kernel.run("point = function(Point).submit().result()\nisinstance(point, Point)").result == "True"


def test_an_error_shows_the_lines_of_both_sides_and_none_of_jobsdk(kernel: Kernel) -> None:
    kernel.run("from jobsdk import function\ndef inner(x):\n    return 1 // x")
    kernel.run("def outer(x):\n    return inner(x)")
    cell = kernel.run("run = function(outer, 0).submit()\nrun.result()")
    assert cell.error == "ZeroDivisionError"
    lines = cell.traceback.splitlines()
    assert lines[:3] == ["in rank 0 on node 0:", "", "Traceback (most recent call last):"]
    assert "    return inner(x)" in lines
    assert "    return 1 // x" in lines
    assert lines[-2:] == ["line 2: run.result()", "ZeroDivisionError: integer division or modulo by zero"]
    assert not any("jobsdk/" in line for line in lines)
    cell = kernel.run("import sys\nfunction(sys.exit, 3).submit().result()")
    assert cell.error == "JobFailed"
    assert "exited with code 3" in cell.traceback
