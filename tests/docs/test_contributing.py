"""CONTRIBUTING.md names files that are there and commands that the Makefile has."""

from __future__ import annotations

import re

from tests.docs.snippets import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def test_what_it_names_is_there() -> None:
    named = re.findall(r"`((?:jobsdk|tests|scripts|docs)/[\w./-]+)`", TEXT) + re.findall(r"\]\(([\w./-]+)\)", TEXT)
    assert len(named) > 30
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_its_commands_are_targets_of_make() -> None:
    commands = re.findall(r"`make (\w+)`", TEXT)
    assert commands
    makefile = (ROOT / "Makefile").read_text()
    assert [name for name in commands if not re.search(rf"(?m)^(?:[\w ]+ )?{name}[ :]", makefile)] == []


def test_it_names_every_package() -> None:
    packages = {path.parent.name for path in (ROOT / "jobsdk").glob("*/__init__.py")} - {"emulator"}
    assert packages <= set(re.findall(r"`jobsdk/(\w+)`", TEXT))
