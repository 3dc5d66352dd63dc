"""Where the volumes of pods come from, and the claims that are created with a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jobsdk.compute.kubernetes.api import Object


def source(given: Mapping[str, Any], own: str = "") -> Object:
    """A volume's source in a pod; `own` is the name of the claim that is created for it."""
    if given.get("per_node"):
        return {"ephemeral": {"volumeClaimTemplate": {"spec": _claim(given)}}}
    if "size" in given:
        return {"persistentVolumeClaim": {"claimName": own}}
    if "claim" in given:
        is_read_only = {"readOnly": True} if given.get("read_only") else {}
        return {"persistentVolumeClaim": {"claimName": given["claim"], **is_read_only}}
    if "host_path" in given:
        return {"hostPath": {"path": given["host_path"]}}
    if "empty_dir" in given:
        size = given["empty_dir"]
        return {"emptyDir": {"sizeLimit": quantity(size)} if isinstance(size, str | int) and size else size or {}}
    return dict(given["source"])


def claims(settings: Mapping[str, Any], name: str) -> dict[str, Object]:
    """The volume claims of a run, which all its nodes share: name -> spec."""
    return {
        f"{name}-volume-{number}": _claim(given)
        for number, given in enumerate(settings.get("volumes", []))
        if "size" in given and not given.get("per_node")
    }


def quantity(size: Any) -> str:
    """A size as Kubernetes writes it: docker's 2g is 2Gi, and what Kubernetes knows stays."""
    found = re.fullmatch("([0-9]+)([bkmgBKMG])", str(size))
    if found is None:
        return str(size)
    return found[1] + {"b": "", "k": "Ki", "m": "Mi", "g": "Gi"}[found[2].lower()]


def _claim(given: Mapping[str, Any]) -> Object:
    mode = given.get("access_mode", "ReadWriteOnce" if given.get("per_node") else "ReadWriteMany")
    storage_class = {"storageClassName": given["storage_class"]} if "storage_class" in given else {}
    return {
        "accessModes": [mode], "resources": {"requests": {"storage": quantity(given["size"])}}, **storage_class,
    }  # fmt: skip
