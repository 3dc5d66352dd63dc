"""The tutorials in docs/tutorials: their blocks run in order in one folder, and print what the page shows."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.docs.snippets import ROOT, Snippet, snippets

NAMES = sorted(path.stem for path in (ROOT / "docs/tutorials").glob("*.md"))
_EXIT_CODE = re.compile(r"  # exit code (\d+)$", re.MULTILINE)


class Step(NamedTuple):
    """A block that a reader runs, and the output that the page shows for it, if any."""

    block: Snippet
    shown: Snippet | None


def steps(name: str) -> list[Step]:
    blocks = snippets(page=f"docs/tutorials/{name}.md")
    found = []
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language in ("sh", "python"):
            found.append(Step(block, after if after and after.language == "text" else None))
    return found


def run_shell(block: Snippet, folder: Path, environ: Mapping[str, str]) -> str:
    """Run a block as its reader would; what it printed. Its last command must end with the code that it promises."""
    argv = ["bash", "-c", block.text]
    done = subprocess.run(
        argv, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=280,
    )  # fmt: skip
    promised = _EXIT_CODE.search(block.text)
    assert done.returncode == (int(promised[1]) if promised else 0), f"{block}: {done.stdout}"
    return done.stdout


def run_python(block: Snippet, names: dict[str, Any]) -> str:
    """Run a block as a notebook's cell, which shows the value of its last line."""
    tree = ast.parse(block.text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, str(block), "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), str(block), "eval"), names)
            print("" if value is None else repr(value))
    return printed.getvalue()


def plain(text: str, folder: Path) -> str:
    """What a block printed, with the paths and the machine of a reader in place of those of this test."""
    for path, shown in (
        (os.environ["JOBSDK_HOME"], "/home/me/.local/share/jobsdk"),
        (str(folder), "/home/me/first"),
        (os.environ["HOME"], "/home/me"),
        (sys.executable, "/home/me/.venv/bin/python"),
    ):
        text = text.replace(path, shown)
    return re.sub(rf"\b{re.escape(os.uname().nodename)}\b", "laptop", text)


def lines(text: str) -> set[str]:
    """The lines without what differs from one run to the next: numbers, names, and lengths of bars and of columns."""
    found = set()
    for line in text.splitlines():
        line = re.sub(r"\b[0-9a-f]{32,}\b", "0", line)
        line = re.sub(r"\b[a-z]+_[a-z]+_[a-z0-9]{10}\b", "NAME", line)
        line = re.sub("[▏▎▍▌▋▊▉█]+", "█", re.sub(r"\d+(\.\d+)?(e-?\d+)?", "0", line))
        if line.strip() not in ("", "..."):
            found.add(" ".join(line.split()))
    return found
