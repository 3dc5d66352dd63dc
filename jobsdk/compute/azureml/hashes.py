"""The names that azure-ai-ml derives from content: of local inputs, of build folders, of environments without a name.

What was uploaded once is found again by them, by whichever of the two clients. So the algorithms are azure-ai-ml's,
with what is odd about them; tests hold both equal.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobsdk.errors import JobsdkError

if TYPE_CHECKING:
    from hashlib import _Hash

#: The name of all environments that have none of their own; the version is the hash of what they are.
ANONYMOUS = "CliV2AnonymousEnvironment"
_SEED = b"Initialize for october 2021 AML CLI version"
_CHUNK = 1 << 20


def text(value: str) -> str:
    """The SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(value.encode()).hexdigest()


def content(path: Path) -> str:
    """The hash of a file, or of a folder's names and content without what its .amlignore, else .gitignore, leaves out.

    Raises JobsdkError if it cannot be read.
    """
    digest = hashlib.sha256(_SEED)
    try:
        if path.is_dir():
            _folder(path, digest, _Ignored(path), ())
        else:
            _file(path, digest)
    except OSError as error:
        raise JobsdkError(f"{path}: cannot be read: {error.strerror or error}") from None
    return digest.hexdigest()


def of_image(image: str, conda: Any) -> str:
    """The version of an environment without a name: an image, and the content of a conda file if there is one."""
    given = text(image)
    if conda:
        # `a.join(b)` puts the first text between the letters of the second: odd, and what azure-ai-ml does.
        given = given.join(text(_yaml(conda)))
    return text(given)


def of_build(folder: Path, dockerfile: str | None) -> str:
    """The version of an environment without a name that is built from a folder."""
    given = text(content(folder))
    return text(given.join(text(dockerfile)) if dockerfile else given)


def _yaml(data: Any) -> str:
    import yaml

    return yaml.dump(data, sort_keys=True)


def _file(path: Path, digest: _Hash) -> None:
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)


def _folder(folder: Path, digest: _Hash, ignored: _Ignored, above: tuple[str, ...]) -> None:
    """Adds a folder, and what is in it, in the order of the lower-cased names; links count as what they lead to."""
    real = folder.resolve()
    if str(real) in above:
        raise JobsdkError(f"{folder}: is a link to a folder that it is in. Fix: remove the link")
    for path in sorted(folder.iterdir(), key=lambda path: str(path).lower()):
        if ignored(path):
            continue
        digest.update(path.name.encode())
        target = path.resolve() if path.is_symlink() else path
        if target.is_file():
            _file(target, digest)
        elif target.is_dir():
            _folder(target, digest, ignored, (*above, str(real)))


class _Ignored:
    """Whether a path is left out: by the folder's own .amlignore, else by its .gitignore; nothing else counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        file = next((folder / name for name in (".amlignore", ".gitignore") if (folder / name).exists()), None)
        self.patterns = []
        if file is not None:
            from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

            lines = file.read_text(encoding="utf-8-sig").splitlines()
            self.patterns = [GitIgnoreSpecPattern(line.rstrip()) for line in lines if line]

    def __call__(self, path: Path) -> bool:
        if not self.patterns:
            return False
        name = os.path.relpath(path.absolute(), self.folder)
        matching = (one.include for one in self.patterns if one.include is not None and one.match_file(name))
        last = False
        for include in matching:
            last = include
        return last
