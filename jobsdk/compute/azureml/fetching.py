"""Bringing what a run on Azure ML has written to this machine: its outputs, from the blobs of their datastores.

azure-ai-ml's own download is not used: version 1.35.2 drops outputs of type uri_folder without a word, and holds each
file in memory as a whole.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from jobsdk.compute.azureml.connection import Blob, Connection
from jobsdk.compute.azureml.following import parsed
from jobsdk.errors import ComputeError
from jobsdk.home import make_folder
from jobsdk.runs.folder import RunFolder

#: Where Azure ML keeps the outputs that a job names no place for.
DEFAULT_PLACE = "azureml://datastores/workspaceblobstore/paths/azureml/{run}/{output}/"
_AT_ONCE = 8  # files that are fetched at the same time


def places(run: RunFolder, job: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The URI of each named output of a run: what the service says of its `job`, else what the job itself said."""
    known = ((job or {}).get("properties") or {}).get("outputs") or {}
    planned = run.plan().get("outputs", {})
    found = {}
    for name in dict.fromkeys([*planned, *(name for name in known if name != "default")]):
        own = planned[name]["uri"] if name in planned else None
        uri: str = (known.get(name) or {}).get("uri") or own or DEFAULT_PLACE
        for mark, value in (("{run}", run.name), ("{output}", name)):
            uri = uri.replace(f"${{{mark}}}", value).replace(mark, value)
        found[name] = uri.replace("${{name}}", run.name).replace("${{output_name}}", name)
    return found


def fetch(connection: Connection, run: RunFolder, names: Sequence[str], artifacts: tuple[str, str]) -> dict[str, str]:
    """Fetch outputs into the run's folder; where each is then. An output that is there already is not fetched again.

    `default` is ./outputs; `artifacts` is the datastore of the run's artifacts, and what their names begin with.
    Raises ComputeError.
    """
    targets = {name: run.path / "outputs" / name for name in names}
    missing = [name for name in names if not targets[name].exists()]
    uris = places(run, connection.job(run.name)) if any(name != "default" for name in missing) else {}
    for name in missing:
        if name == "default":
            place: tuple[str, str] | None = (artifacts[0], f"{artifacts[1]}outputs/")
        else:
            place = parsed(uris[name])
        if place is None:
            raise ComputeError(
                f"output {name} of run {run.name} is at {uris[name]}, which is read with that storage's own tools"
            )
        fetch_tree(connection, *place, targets[name])
    return {name: str(target) for name, target in targets.items()}


def fetch_tree(connection: Connection, datastore: str, path: str, target: Path) -> None:
    """Fetch the blob `path`, or all below it, to the folder `target`, which is whole if it is there.

    Raises ComputeError.
    """
    prefix = path.rstrip("/")
    files: list[tuple[Blob, PurePosixPath]] = []
    for blob in connection.list_blobs(datastore, prefix):
        if blob.name == prefix:
            if not blob.is_folder:
                files.append((blob, PurePosixPath(PurePosixPath(prefix).name)))
        elif blob.name.startswith(f"{prefix}/") and not blob.name.endswith("/"):
            below = PurePosixPath(blob.name[len(prefix) + 1 :])
            if ".." in below.parts or below.is_absolute():
                raise ComputeError(f"datastore {datastore}: a name leads out of its folder: {blob.name}")
            files.append((blob, below))
    make_folder(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetched-") as folder:
        whole = Path(folder) / "whole"
        whole.mkdir()
        try:
            for blob, below in files:
                (whole / below if blob.is_folder else (whole / below).parent).mkdir(parents=True, exist_ok=True)
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                wanted = [(blob.name, str(whole / below)) for blob, below in files if not blob.is_folder]
                for _ in pool.map(lambda one: connection.fetch_blob(datastore, *one), wanted):
                    pass
            os.rename(whole, target)
        except OSError as error:
            if not target.exists():  # else somebody else was faster
                raise ComputeError(f"cannot write {target}: {error.strerror}") from error
