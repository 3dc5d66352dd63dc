"""Which workspace of Azure ML: its three names, and the config.json that holds them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jobsdk.errors import JobsdkError
from jobsdk.job.paths import working_directory

#: The keys of a workspace in a config.json, as the portal offers it for download, and in computes.yml.
KEYS = ("subscription_id", "resource_group", "workspace_name")
_FILE = "config.json"
_FOLDERS = ("", ".azureml", "aml_config")  # where azure-ai-ml looks for it, in each folder up to the root


class Workspace(NamedTuple):
    """A workspace of Azure ML."""

    subscription_id: str
    resource_group: str
    workspace_name: str

    @property
    def id(self) -> str:
        """Its resource id, without a slash at its end: what ids of codes, environments and jobs begin with."""
        return (
            f"/subscriptions/{self.subscription_id}/resourceGroups/{self.resource_group}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{self.workspace_name}"
        )


def from_config(path: str | os.PathLike[str] | None = None, file_name: str | None = None) -> Workspace:
    """The workspace that a config.json names: the file `path`, or one in that folder or above it, else in the working
    directory or above it. Raises JobsdkError."""
    start = Path(working_directory(), os.fspath(path) if path is not None else "")
    if not start.exists():
        raise JobsdkError(f"there is no {start}. Fix: give the path of a config.json, or of a folder below it")
    found = start if start.is_file() else _search(start, file_name or _FILE)
    try:
        content = json.loads(found.read_bytes())
    except (OSError, ValueError) as error:
        raise JobsdkError(f"{found}: cannot be read: {error}") from None
    return from_mapping(_scoped(content), str(found))


def from_mapping(content: Any, where: str) -> Workspace:
    """The workspace in a mapping with KEYS. Raises JobsdkError that speaks of `where`."""
    if not isinstance(content, Mapping):
        raise JobsdkError(f"{where}: must be a mapping with the keys {', '.join(KEYS)}")
    missing = [key for key in KEYS if not isinstance(content.get(key), str) or not content[key]]
    if missing:
        raise JobsdkError(f"{where}: {', '.join(missing)} must be given, as text")
    return Workspace(*(content[key] for key in KEYS))


def _scoped(content: Any) -> Any:
    """What older files say in one value: `Scope`, a resource id."""
    scope = content.get("Scope") if isinstance(content, Mapping) else None
    if not isinstance(scope, str):
        return content
    parts = scope.strip("/").split("/")
    names = dict(zip(parts[::2], parts[1::2], strict=False))
    keys = ("subscriptions", "resourceGroups", "workspaces")
    return {ours: names.get(theirs) for ours, theirs in zip(KEYS, keys, strict=True)}


def _search(start: Path, name: str) -> Path:
    for folder in (start, *start.parents):
        for below in _FOLDERS:
            if (folder / below / name).is_file():
                return folder / below / name
    raise JobsdkError(
        f"there is no {name} in {start} or above it. Fix: download it from the workspace's page in Azure ML studio, or "
        "give subscription_id, resource_group_name and workspace_name"
    )
