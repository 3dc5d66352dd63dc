"""Which state of a repository the code of a job is: the properties that Azure ML's studio shows.

Names and overriding variables are those of azure-ai-ml, which however looks at the working directory, and leaves all
out where the repository's URL holds a password; here it is the code's own folder, and the URL without the password.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from jobsdk.snapshot.git import is_versioned, run_git

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


def git_properties(folder: Path) -> dict[str, str]:
    """The properties of the code in a folder (or of a file's folder); none where no .git is in it or above it."""
    folder = folder if folder.is_dir() else folder.parent
    has_git = is_versioned(folder)
    found: dict[str, str] = {}
    for name, variable in _NAMES.items():
        given = os.environ.get(variable, "").strip()
        text: str | None = given or None
        if not given and has_git and name in _COMMANDS:
            text = run_git(folder, *_COMMANDS[name])
        if name == "azureml.git.dirty" and text is not None:
            text = str(text.lower() in ("true", "1") if given else bool(text))
        if text:
            found[name] = _without_password(text)
    return found


def _without_password(text: str) -> str:
    """A URL without what stands before the host's name, unless it is the user of ssh alone."""
    return re.sub(r"^(https?://)[^/@]*@|^(\w+://[^/:@]*):[^/@]*(?=@)", lambda match: match[1] or match[2], text)
