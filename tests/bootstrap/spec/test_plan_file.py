"""The plan as the bootstrap reads it, and the file of its secrets."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from jobsdk.bootstrap.spec import plan_file

PLAN = {"environment": {"A": "1"}, "command": ["run ***"], "nodes": 1, "sealed": ["command", "environment"]}
PARTS = {"environment": {"B": "2"}, "command": ["run secret"], "secret_values": ["secret"]}


def test_secrets_are_put_into_the_plan_and_forgotten_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    plan_file.write_secrets(str(tmp_path), PARTS)
    plan = plan_file.read(str(tmp_path))
    assert plan["environment"] == {"A": "1", "B": "2"}
    assert (plan["command"], plan["secret_values"], plan["nodes"]) == (["run secret"], ["secret"], 1)
    plan_file.forget_secrets(str(tmp_path))
    plan_file.forget_secrets(str(tmp_path))
    assert os.listdir(tmp_path) == ["plan.json"]
    with pytest.raises(FileNotFoundError, match=r"secrets\.json"):
        plan_file.read(str(tmp_path))


def test_a_plan_without_secrets_needs_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({**PLAN, "sealed": []}))
    assert plan_file.read(str(tmp_path))["command"] == ["run ***"]


def test_nobody_else_can_read_the_secrets_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        plan_file.write_secrets(str(tmp_path), PARTS)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "secrets.json").stat().st_mode) == 0o600


def test_a_file_that_somebody_has_put_there_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        plan_file.write_secrets(str(tmp_path), PARTS)
    assert not (tmp_path / "elsewhere").exists()
