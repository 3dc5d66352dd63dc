"""The paths that a job may hold: local ones, and URIs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from jobsdk.bootstrap.spec.paths import is_remote


def is_local(path: str) -> bool:
    """Whether `path` is a path on this machine rather than a URI (`https:`, `azureml:`, ...) or an asset's name.

    `file:` stands for a local path. One letter and a colon is a drive, not a URI.
    """
    return is_file_uri(path) or not is_remote(path)


def is_file_uri(text: object) -> bool:
    """Whether the text is `file:` and a path."""
    return isinstance(text, str) and text[:5].lower() == "file:"


def strip_file(path: str) -> str:
    """The path without `file:` or `file://`; what follows is a plain path, not a percent-encoded one."""
    match = re.match(r"file:(//(?=/))?", path, re.IGNORECASE)
    return path[match.end() :] if match else path


def local_path(path: str) -> str:
    """The local path that `path` means: without `file:`, `~` as the user's home."""
    return os.path.expanduser(strip_file(path))


def working_directory() -> str:
    """The working directory. Raises JobsdkError if it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        from jobsdk.errors import JobsdkError

        raise JobsdkError("the working directory has been deleted. Fix: change to a folder that exists") from None


def relative_to(base: str, folder: str) -> Callable[[str], str]:
    """Rewrites local paths that are relative to `base` so that they are relative to `folder`; absolute ones stay."""

    def rewrite(path: str) -> str:
        bare = strip_file(path)
        if os.path.isabs(os.path.expanduser(bare)) or os.path.realpath(base) == os.path.realpath(folder):
            return path
        return path[: len(path) - len(bare)] + os.path.relpath(os.path.join(base, bare), folder)

    return rewrite
