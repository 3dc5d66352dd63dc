"""A code folder's content hash: for the first time, unchanged, and beside many ignored files."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Figures, Table

FIGURES = ("list", "first hash", "unchanged")
_IGNORE = "/ignored/\n*.tmp\n"


def _make_code(folder: Path, count: int) -> int:
    """`count` files in 200 folders, 4 KB each in the mean and most of them smaller; how many there are in all."""
    chance = random.Random(0)
    for number in range(count):
        parent = folder / f"package{number % 20}" / f"module{number % 200}"
        parent.mkdir(parents=True, exist_ok=True)
        size = int(min(chance.lognormvariate(7.0, 1.6), 1 << 20))
        (parent / f"file{number}.py").write_bytes(chance.randbytes(size))
    (folder / ".amlignore").write_text(_IGNORE)
    return count + 1


def _add_empty(folder: Path, count: int, suffix: str) -> None:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}{suffix}").touch()


def _jobsdk(code: Path, files: int) -> Figures:
    """Twice with one content cache, which is empty at first."""
    with harness.scratch() as folder:
        command = [sys.executable, str(harness.PROGRAMS / "snapshot_jobsdk.py"), str(code), str(files)]
        runs = []
        for name in ("first", "again"):
            (folder / name).mkdir()
            runs.append(harness.figures(command, folder=folder / name, env={"JOBSDK_HOME": str(folder / "home")}))
    return {"list": runs[1]["list"], "first hash": runs[0]["hash"], "unchanged": runs[1]["hash"]}


def _azure(code: Path, files: int) -> Figures:
    with harness.scratch() as folder:
        command = [sys.executable, str(harness.PROGRAMS / "snapshot_azure.py"), str(code), str(files)]
        run = harness.figures(command, folder=folder)
    return {"list": run["list"], "first hash": run["hash"], "unchanged": run["hash"]}


def _each(work: Callable[[Path, int], Figures], settings: Mapping[str, Path], files: int) -> Figures:
    return {figure + where: value for where, code in settings.items() for figure, value in work(code, files).items()}


def measure(quick: bool) -> Table:
    count, ignored, turns = (100, 300, 1) if quick else (5000, 30_000, 3)
    contenders = {"jobsdk": _jobsdk}
    if harness.takes_part("azure"):
        contenders["azure-ai-ml"] = _azure
    with harness.scratch() as folder:
        plain, by_folder, by_pattern = (folder / name for name in ("plain", "folder", "pattern"))
        for code in (plain, by_folder, by_pattern):
            files = _make_code(code, count)
        _add_empty(by_folder / "ignored", ignored, ".py")
        _add_empty(by_pattern / "temporary", ignored, ".tmp")
        settings = {
            f", {count:,} files": plain,
            f", and {ignored:,} in an ignored folder": by_folder,
            f", and {ignored:,} ignored by a pattern": by_pattern,
        }
        # All three folders in each turn: what the ignored files cost is a small difference.
        works = {name: functools.partial(_each, work, settings, files) for name, work in contenders.items()}
        medians = harness.rounds(works, turns)
        rows = [
            row
            for where in settings
            for row in harness.by_figure(medians, {f"{figure}{where}": "s" for figure in FIGURES})
        ]
    return Table(
        "A code folder's content hash",
        "Within one process, imports not counted; unchanged is a second process that finds what the first one "
        "remembered. azure-ai-ml: `get_upload_files_from_folder` and `get_content_hash`, which its `Code` asset calls "
        "before an upload; it remembers nothing, so its two hashes are one figure.",
        "The wait before a submitted job's code is known, each time.",
        rows,
    )
