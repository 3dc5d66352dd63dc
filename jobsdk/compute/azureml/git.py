"""Which state of a repository the code of a job is: the properties that Azure ML's studio shows.

Names and overriding variables are those of azure-ai-ml, which however looks at the working directory, and leaves all
out where the repository's URL holds a password; here it is the code's own folder, and the URL without the password.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

#: Each property, with the variable that has its value where a build system knows better than git.
_NAMES = {
    "mlflow.source.git.repoURL": "AZUREML_GIT_REPOSITORY_URI",
    "mlflow.source.git.branch": "AZUREML_GIT_BRANCH",
    "mlflow.source.git.commit": "AZUREML_GIT_COMMIT",
    "azureml.git.dirty": "AZUREML_GIT_DIRTY",
    "azureml.git.build_id": "AZUREML_GIT_BUILD_ID",
    "azureml.git.build_uri": "AZUREML_GIT_BUILD_URI",
}
_COMMANDS = {
    "mlflow.source.git.repoURL": ("ls-remote", "--get-url"),
    "mlflow.source.git.branch": ("symbolic-ref", "--short", "HEAD"),
    "mlflow.source.git.commit": ("rev-parse", "HEAD"),
    "azureml.git.dirty": ("status", "--porcelain", "."),
}
#: Seconds that one call of git may take; what takes longer is left out.
_PATIENCE_S = 10


def git_properties(folder: Path) -> dict[str, str]:
    """The properties of the code in a folder (or of a file's folder); none where no .git is in it or above it."""
    folder = folder if folder.is_dir() else folder.parent
    above = folder.resolve()
    is_versioned = any((one / ".git").exists() for one in (above, *above.parents))
    found: dict[str, str] = {}
    for name, variable in _NAMES.items():
        given = os.environ.get(variable, "").strip()
        text: str | None = given or None
        if not given and is_versioned and name in _COMMANDS:
            text = _git(folder, *_COMMANDS[name])
        if name == "azureml.git.dirty" and text is not None:
            text = str(text.lower() in ("true", "1") if given else bool(text))
        if text:
            found[name] = _without_password(text)
    return found


def _git(folder: Path, *args: str) -> str | None:
    """What git says, or None where it fails or there is none. Nothing is written, and nobody asked."""
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ("git", *args),
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()


def _without_password(text: str) -> str:
    """A URL without what stands before the host's name, unless it is the user of ssh alone."""
    return re.sub(r"^(https?://)[^/@]*@|^(\w+://[^/:@]*):[^/@]*(?=@)", lambda match: match[1] or match[2], text)
