"""What differs between two runs: of real ones, and of folders."""

from __future__ import annotations

from pathlib import Path

from jobsdk.runs.comparison import Difference, compare
from jobsdk.runs.folder import RunFolder


def made(name: str, job: str, files: dict[str, str] | None = None, packages: dict[str, str] | None = None) -> RunFolder:
    run = RunFolder.create(name)
    (run.path / "job.yml").write_text(f"name: {name}\n{job}")
    run.update_facts({"compute": "local"})
    for path, text in (files or {}).items():
        (run.code / path).parent.mkdir(parents=True, exist_ok=True)
        (run.code / path).write_text(text)
    if packages is not None:
        python = {"version": "3.12.1", "executable": "/p", "packages": packages}
        facts = {"system": "Linux", "cores": 8, "memory": 1 << 30, "gpus": [], "driver": None}
        run.append_event("inventory", node=0, **facts, python=python)
    return run


def test_equal_runs_do_not_differ() -> None:
    runs = [made(name, "command: python t.py\ninputs: {lr: 1}\n", {"t.py": "1"}, {"a": "1"}) for name in "ab"]
    assert compare(*runs) == []


def test_each_part_is_compared() -> None:
    first = made("a", "command: x\ninputs: {lr: 0.1}\n", {"t.py": "1", "old.py": ""}, {"torch": "2.12", "six": "1"})
    second = made("b", "command: x\ninputs: {lr: 0.2}\ntags: {t: v}\n", {"t.py": "2", "m/n.py": "1"}, {"torch": "2.13"})
    second.update_facts({"compute": "gpu", "git": {"commit": "c", "branch": "main", "is_dirty": False}})
    assert compare(first, second) == [
        Difference("job", "compute", "local", "gpu"),
        Difference("job", "inputs.lr", "0.1", "0.2"),
        Difference("job", "tags.t", None, "v"),
        Difference("code", "m/n.py", None, "1 bytes"),
        Difference("code", "old.py", "0 bytes", None),
        Difference("code", "t.py", "1 bytes", "1 bytes"),
        Difference("git", "branch", None, "main"),
        Difference("git", "commit", None, "c"),
        Difference("git", "is_dirty", None, "False"),
        Difference("packages", "six", "1", None),
        Difference("packages", "torch", "2.12", "2.13"),
    ]


def test_packages_that_one_run_does_not_know_are_not_listed() -> None:
    found = compare(made("a", "command: x\n", packages={"torch": "2"}), made("b", "command: x\n"))
    assert {(one.part, one.what) for one in found} == {
        ("machines", "nodes"), ("python", "executable"), ("python", "version")
    }  # fmt: skip


def test_links_are_compared_by_their_targets_and_in_place_code_is_named(tmp_path: Path) -> None:
    runs = [made(name, "command: x\n", {"t.py": "1"}) for name in "ab"]
    for run, target in zip(runs, ("t.py", "elsewhere"), strict=True):
        (run.code / "link").symlink_to(target)
    assert [(one.part, one.what) for one in compare(*runs)] == [("code", "link")]
    in_place = made("c", "command: x\n")
    assert compare(runs[0], in_place) == [Difference("code", "where", "a copy", "in place")]
