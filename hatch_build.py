"""Puts the commit that is built into the package, for `jobsdk --version`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """An sdist brings the commit along; an editable installation asks git when it is used."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        is_repository = os.path.exists(os.path.join(self.root, ".git"))
        if version == "editable" or not is_repository:
            return
        path = os.path.join(self._folder.name, "commit.txt")
        words = ["git", "describe", "--always", "--dirty=+modified", "--exclude=*", "--abbrev=12"]
        try:
            commit = subprocess.run(words, cwd=self.root, check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return
        with open(path, "w") as file:
            file.write(commit)
        build_data["force_include"][path] = "jobsdk/commit.txt"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()
