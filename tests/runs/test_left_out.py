from __future__ import annotations

from typing import Any

import pytest

from jobsdk.runs import left_out
from jobsdk.runs.folder import RunFolder

LEFT_OUT = [
    {"path": "data/", "reason": "is ignored by .gitignore:1: data/", "rule": ".gitignore:1"},
    {"path": "lib/build.py", "reason": "is ignored by lib/.gitignore:2: build.py", "rule": "lib/.gitignore:2"},
    {"path": "models/", "reason": "is ignored by /above/.gitignore:9: models", "rule": "/above/.gitignore:9"},
    {"path": ".env", "reason": "looks like a secret", "rule": ""},
]


@pytest.fixture
def run() -> RunFolder:
    folder = RunFolder.create("failed")
    folder.write_json("snapshot.json", {"left_out": LEFT_OUT})
    folder.update_facts({"working_dir": "/remote/code"})
    return folder


def no_file(path: str) -> dict[str, Any]:
    error = f"FileNotFoundError: [Errno 2] No such file or directory: {path!r}"
    return {"class": "file_not_found", "error": error}


def no_module(name: str) -> dict[str, Any]:
    return {"class": "import_error", "error": f"ModuleNotFoundError: No module named {name!r}"}


def last_lines(*lines: str) -> dict[str, Any]:
    return {"class": "exit", "error": "", "last_lines": lines}


@pytest.mark.parametrize(
    ("cause", "path"),
    [
        (no_file("data/x.txt"), "data/"),
        (no_file("./data"), "data/"),
        (no_file("/remote/code/data/a/b"), "data/"),
        (no_file(".env"), ".env"),
        (no_file("lib/../models/m.pt"), "models/"),
        (no_module("lib.build"), "lib/build.py"),
        (no_module("models.net.layers"), "models/"),
        (last_lines("cat: data/x.txt: No such file or directory"), "data/"),
        (last_lines("python: can't open file '/remote/code/lib/build.py': [Errno 2]"), "lib/build.py"),
        (no_file("database/x.txt"), None),
        (no_file("/mnt/data/x.txt"), None),
        (no_file("../data/x.txt"), None),
        (no_module("lib.builder"), None),
        ({"class": "exception", "error": "ValueError: 'data' is wrong"}, None),
        (last_lines("cannot open 'data/x.txt'", "1", "2", "3"), None),
        ({}, None),
    ],
)  # fmt: skip
def test_what_a_failure_needed_is_found_among_what_was_left_out(
    run: RunFolder, cause: dict[str, Any], path: str | None
) -> None:
    found = left_out.missing(run, cause)
    assert (found and found.message.partition(" was left out of the code (")[0]) == path


@pytest.mark.parametrize(
    ("cause", "message", "advice"),
    [
        (no_file("data/x"), "data/ was left out of the code (.gitignore:1)", "add the line !data/ to .amlignore in"),
        (no_module("lib.build"), "(lib/.gitignore:2)", "add the line !build.py to lib/.amlignore in the code folder"),
        (no_file("models/x"), "(/above/.gitignore:9)", "add the line !models/ to .amlignore in the code folder"),
        (no_file(".env"), ".env was left out of the code (looks like a secret)", "add the line !.env to .amlignore"),
    ],
)
def test_how_to_have_it_copied(run: RunFolder, cause: dict[str, Any], message: str, advice: str) -> None:
    found = left_out.missing(run, cause)
    assert found is not None
    assert message in found.message
    assert advice in found.advice


def test_a_run_in_place_lacks_nothing() -> None:
    folder = RunFolder.create("in_place")
    assert left_out.of_run(folder) == []
    assert left_out.missing(folder, no_file("data/x.txt")) is None
