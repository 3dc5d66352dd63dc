"""The tables made of the code: they are as the code says, and nothing is missing in them."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from jobsdk import command
from jobsdk import reference as meanings
from jobsdk.bootstrap.failures import known_errors
from jobsdk.bootstrap.spec import exit_codes
from jobsdk.client.operations import MLClient
from tests.docs.snippets import ROOT


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["reference"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_as_the_code_says(reference: ModuleType) -> None:
    old = [str(path.relative_to(ROOT)) for path, _ in reference.outdated()]
    assert not old, "python scripts/reference.py writes them anew"


def test_a_page_that_is_out_of_date_is_found_and_mended(
    reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "FOLDER", tmp_path / "docs/reference")
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(sys, "argv", ["reference.py", "--check"])
    assert reference.main() == 1
    monkeypatch.setattr(sys, "argv", ["reference.py"])
    assert reference.main() == 0
    assert not list(reference.outdated())
    (tmp_path / "docs/reference/events.md").write_text("by hand")
    assert [path.name for path, _ in reference.outdated()] == ["events.md"]


def test_every_variable_of_the_contract_is_described(reference: ModuleType) -> None:
    options = [*reference.JOBS.values(), *reference._CONDITIONS.values()]
    found = {name for one in options for nodes in (1, 2) for name in reference.set_by(one, nodes)}
    assert found == set(meanings.VARIABLES)


def test_every_variable_of_a_real_process_is_described(reference: ModuleType, tmp_path: Path) -> None:
    """What a rank finds that this process has not, is in the table; and who is said to get it does."""
    script = "import json, os; print('found', json.dumps(dict(os.environ)), flush=True)"
    (tmp_path / "show.py").write_text(script)
    job = command(
        command="python show.py",
        code=tmp_path,
        inputs={"name": 1},
        outputs={"name": {"type": "uri_folder"}},
        distribution={"type": "pytorch"},
    )
    run = MLClient().jobs.create_or_update(job, warn=lambda text: None)
    run.result()
    log = (run.folder.path / "logs/node-0/rank-0.log").read_text()
    variables = json.loads(log.partition("found ")[2])
    new = {name for name, value in variables.items() if os.environ.get(name) != value} - {"PWD", "SHLVL", "_", "OLDPWD"}
    named = {name.replace("_name", "_<name>") if name.startswith("AZURE_ML_") else name for name in new}
    # PATH has the folder of this very Python in front, for whoever submits.
    assert named - {"PATH"} <= set(reference.set_by({"distribution": {"type": "pytorch"}}, 1))
    assert {"RANK", "TORCHELASTIC_RUN_ID", "AZURE_ML_INPUT_<name>"} <= named


def test_every_event_is_described() -> None:
    written = set(names_of_events())
    assert written == set(meanings.EVENTS)


def test_the_events_of_a_run_have_the_facts_that_the_table_names() -> None:
    run = MLClient().jobs.create_or_update(command(command="exit 3"), warn=lambda text: None)
    run.wait()
    events = run.folder.events()
    assert {"submitted", "started", "rank_ended", "failure", "ended"} <= {event["event"] for event in events}
    for event in events:
        assert set(event) - {"t", "event", "origin", "stopped"} <= set(meanings.EVENTS[event["event"]].facts), event


def test_every_class_of_failures_is_described() -> None:
    assert set(meanings.FAILURES) == set(known_errors.CLASSES)


def test_every_exit_code_is_described() -> None:
    own = {value for name, value in vars(exit_codes).items() if name.isupper()}
    assert set(meanings.EXIT_CODES) == {0} | own


_WRITERS = {"append_event", "append", "note", "_note", "_event", "tell", "_tell"}


def names_of_events() -> Iterator[str]:
    """The names that the code writes into `events.jsonl`: the first texts given to what writes there."""
    others = {"cancel", "plan"}  # a request, and a line between a driver and its client
    for path in set((ROOT / "jobsdk").rglob("*.py")) - {Path(meanings.__file__)}:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            texts = [one.value for one in node.args[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if (
                name in _WRITERS
                and texts
                and is_name(texts[0])
                and texts[0] not in others
                and node.keywords + node.args
            ):
                yield texts[0]


def is_name(text: str) -> bool:
    return text.replace("_", "").isalpha() and text.islower()
