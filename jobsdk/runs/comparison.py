"""What differs between two runs: job, code, Python, packages and machines."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobsdk.runs import provenance

if TYPE_CHECKING:
    from jobsdk.runs.folder import RunFolder
    from jobsdk.runs.provenance import Provenance

#: Keys of a job file that differ between any two runs, or that other parts speak of.
_OWN = ("name", "code", "$schema")


class Difference(NamedTuple):
    """One thing that is not the same; None where a run does not have it."""

    part: str  # job, code, git, python, packages or machines
    what: str
    first: str | None
    second: str | None


def compare(first: RunFolder, second: RunFolder) -> list[Difference]:
    """All that differs, part by part. What is not known of a run counts as missing."""
    runs = (first, second)
    of_first, of_second = (provenance.of_run(run) for run in runs)
    jobs = [{**_flat(_job(run)), "compute": run.facts().get("compute")} for run in runs]
    gits, pythons = [[function(one) for one in (of_first, of_second)] for function in (_git, _python)]
    machines = [{"nodes": provenance.machines_text(one.machines)} for one in (of_first, of_second)]
    packages = [one.python.packages if one.python else {} for one in (of_first, of_second)]
    packages = packages if all(packages) else [{}, {}]  # there is nothing to compare them with
    return [
        *_differ("job", *jobs),
        *_code(*(run.code for run in runs)),
        *_differ("git", *gits),
        *_differ("python", *pythons),
        *_differ("packages", *packages),
        *_differ("machines", *machines),
    ]


def _differ(part: str, first: Mapping[str, object], second: Mapping[str, object]) -> Iterator[Difference]:
    for name in sorted({*first, *second}):
        values = [None if one.get(name) is None else str(one[name]) for one in (first, second)]
        if values[0] != values[1]:
            yield Difference(part, name, *values)


def _job(run: RunFolder) -> Mapping[str, object]:
    import yaml

    try:
        found = yaml.safe_load((run.path / "job.yml").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return {key: value for key, value in found.items() if key not in _OWN}


def _flat(data: Mapping[str, object], before: str = "") -> Mapping[str, object]:
    """Nested keys as dotted ones."""
    found: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found.update(_flat(value, f"{before}{key}."))
        else:
            found[f"{before}{key}"] = value
    return found


def _git(origin: Provenance) -> Mapping[str, object]:
    return origin.commit._asdict() if origin.commit else {}


def _python(origin: Provenance) -> Mapping[str, object]:
    python = origin.python
    known = {"version": python.version, "executable": python.executable} if python else {}
    return {**known, "jobsdk that submitted it": origin.jobsdk}


def _code(first: Path, second: Path) -> Iterator[Difference]:
    """Files of the private copies: of a run in place there is none, and its commit has to do."""
    if first.is_dir() and second.is_dir():
        files = [_files(folder) for folder in (first, second)]
        for path in sorted({*files[0], *files[1]}):
            sizes = [None if one.get(path) is None else f"{one[path]} bytes" for one in files]
            if None in sizes or not _is_same(first / path, second / path):
                yield Difference("code", path, *sizes)
    elif first.is_dir() != second.is_dir():
        yield Difference("code", "where", *("a copy" if one.is_dir() else "in place" for one in (first, second)))


def _files(folder: Path) -> dict[str, int]:
    """The size of each file by its path in the folder; links are not followed."""
    found = {}
    for top, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(top, name)
            found[os.path.relpath(path, folder)] = os.lstat(path).st_size
    return found


def _is_same(first: Path, second: Path) -> bool:
    links = [os.readlink(one) if one.is_symlink() else None for one in (first, second)]
    if links != [None, None]:
        return links[0] == links[1]
    return filecmp.cmp(first, second, shallow=False)
