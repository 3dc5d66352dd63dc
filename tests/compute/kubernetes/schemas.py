"""The schemas of what is sent: Kubernetes' own by kubernetes-validate, those of CRDs by the files beside this one.

`jobsets.crd.yaml` is JobSet's own file (Apache License 2.0). Unknown fields are mistakes, as they are for the server
with the field validation `Strict`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

HERE = Path(__file__).parent
JOBSET = "jobset.x-k8s.io/v1alpha2"
#: What only some versions of Kubernetes know.
ONLY_IN = {
    "scheduling.k8s.io/v1alpha1": ("1.35",),
    "scheduling.k8s.io/v1alpha2": ("1.36",),
    "scheduling.k8s.io/v1beta1": ("1.37",),
}


@functools.lru_cache
def _of_crds() -> dict[tuple[str, str], Any]:
    """(group and version, kind) -> schema"""
    (jobset,) = yaml.load((HERE / "jobsets.crd.yaml").read_bytes(), yaml.CSafeLoader)["spec"]["versions"]
    found = {(JOBSET, "JobSet"): jobset["schema"]["openAPIV3Schema"]}
    for one in yaml.load_all((HERE / "podgroups.crd.yaml").read_bytes(), yaml.CSafeLoader):
        found[f"{one['group']}/{one['version']}", one["kind"]] = one["schema"]
    for schema in found.values():
        schema["properties"]["metadata"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        _close(schema)
    return found


@functools.lru_cache
def _validator(version: str, kind: str) -> jsonschema.Draft7Validator | None:
    schema = _of_crds().get((version, kind))
    return None if schema is None else jsonschema.Draft7Validator(schema)


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


def mistakes(one: dict[str, Any], version: str) -> list[str]:
    """What is wrong with an object, by the schema of its CRD, or of that version of Kubernetes."""
    validator = _validator(one["apiVersion"], one["kind"])
    if validator is not None:
        return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(one)]
    if version not in ONLY_IN.get(one["apiVersion"], (version,)):
        return []
    try:
        kubernetes_validate.validate(one, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [error.message]
    return []
