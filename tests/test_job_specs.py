"""The job files of the repository, and the schema that they name for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jobsdk import job_schema, load_job

SPECS = Path(__file__).parent.parent / "job_specs"
FILES = sorted(SPECS.glob("*.yml"))


def schema() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((SPECS / "job.schema.json").read_text())
    return content


def test_the_schema_is_what_the_command_prints() -> None:
    assert schema() == job_schema(), "write it anew: jobsdk schema > job_specs/job.schema.json"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_names_the_schema_and_is_valid(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# yaml-language-server: $schema=job.schema.json\n")
    jsonschema.validate(yaml.safe_load(text), schema())
    # Made by `make demo`, and by each example's make_data.py.
    missing_data = {("inputs", "cifar", "path"), ("inputs", "mnist", "path")}
    errors = {finding.path for finding in load_job(path).findings() if finding.is_error}
    assert errors <= missing_data


def test_there_are_some() -> None:
    assert {"cifar10-pytorch", "hello-ranks", "hello-world"} <= {path.stem for path in FILES}
