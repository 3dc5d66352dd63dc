"""Which workspace a config.json names, and where it is looked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobsdk import JobsdkError
from jobsdk.compute.azureml.workspace import Workspace, from_config, from_mapping

_CONTENT = {"subscription_id": "s", "resource_group": "g", "workspace_name": "w"}


@pytest.mark.parametrize("place", ["config.json", ".azureml/config.json", "aml_config/config.json"])
def test_the_file_is_found_here_and_above(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(_CONTENT))
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert from_config() == from_config(file) == from_config(tmp_path) == Workspace("s", "g", "w")


def test_an_older_file_has_it_in_one_value(tmp_path: Path) -> None:
    workspace = Workspace("s", "g", "w")
    (tmp_path / "old.json").write_text(json.dumps({"Scope": workspace.id}))
    assert from_config(tmp_path, "old.json") == workspace


def test_what_is_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobsdkError, match=r"there is no config\.json in .* Fix: download it"):
        from_config()
    (tmp_path / "config.json").write_text(json.dumps(_CONTENT))
    with pytest.raises(JobsdkError, match=r"there is no .*/nowhere\.json\. Fix: give the path of a config\.json"):
        from_config("nowhere.json")  # not the one that is beside it
    with pytest.raises(JobsdkError, match="x: workspace_name must be given, as text"):
        from_mapping({**_CONTENT, "workspace_name": None}, "x")
    with pytest.raises(JobsdkError, match="x: must be a mapping"):
        from_mapping([], "x")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(JobsdkError, match="cannot be read"):
        from_config()
