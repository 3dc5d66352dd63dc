"""What is known of a workspace from earlier submissions: ids of code, data and environments that are there already."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from jobsdk.bootstrap.system import private
from jobsdk.compute.azureml.workspace import Workspace

#: Seconds. What is in a storage may be cleaned up there; after a day it is looked at again.
_LIFE_S = 24 * 3600.0
_MOST = 500  # entries


class Remembered:
    """A small file in jobsdk's cache: key -> id. Whatever is wrong with it, it is only as if nothing were known."""

    def __init__(self, workspace: Workspace) -> None:
        from jobsdk.home import home

        name = hashlib.sha256(workspace.id.lower().encode()).hexdigest()[:32]
        self._file = Path(home()) / "cache" / "azureml" / f"{name}.json"

    def get(self, key: str) -> str | None:
        found = self._load().get(key)
        return found[0] if found is not None and time.time() - found[1] < _LIFE_S else None

    def put(self, values: dict[str, str]) -> None:
        self._change(values)

    def forget(self, keys: list[str]) -> None:
        self._change({}, keys)

    def _change(self, values: dict[str, str], gone: list[str] | None = None) -> None:
        known = {key: value for key, value in self._load().items() if key not in (gone or ())}
        known.update({key: (value, time.time()) for key, value in values.items()})
        latest = sorted(known.items(), key=lambda item: item[1][1])[-_MOST:]
        try:
            private.make_folder(str(self._file.parent))
            private.replace(str(self._file), json.dumps(dict(latest)).encode())
        except OSError:
            pass  # the next submission takes as long as this one

    def _load(self) -> dict[str, tuple[str, float]]:
        try:
            content: Any = json.loads(self._file.read_bytes())
            return {str(key): (str(value), float(since)) for key, (value, since) in content.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
