"""The schema of JobSets, from the project's CRD beside this file (Apache License 2.0); unknown fields are mistakes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jsonschema
import yaml


@functools.lru_cache
def _validator() -> jsonschema.Draft7Validator:
    content = yaml.load((Path(__file__).parent / "jobsets.crd.yaml").read_bytes(), yaml.CSafeLoader)
    (version,) = content["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    _close(schema)
    return jsonschema.Draft7Validator(schema)


def _close(schema: Any) -> None:
    """Let no object have a field that it does not name, as the server with field validation does."""
    if isinstance(schema, dict):
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
        if "properties" in schema and not open_ended:
            schema["additionalProperties"] = False
        if schema.pop("x-kubernetes-int-or-string", False):
            schema.pop("type", None)
            schema["anyOf"] = [{"type": "integer"}, {"type": "string"}]
        for value in schema.values():
            _close(value)
    elif isinstance(schema, list):
        for value in schema:
            _close(value)


def jobset_mistakes(one: dict[str, Any]) -> list[str]:
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in _validator().iter_errors(one)]
