"""How this jobsdk was installed: its commit, its optional parts, and the command that adds one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

_HERE = Path(__file__).resolve().parent
#: For developers: not what users add.
_OURS = frozenset(("dev", "bench", "docs"))


def install_command(extra: str) -> str:
    """The command that adds an optional part: with the folder, file or URL that jobsdk was installed from (PEP 610).

    Where that is gone it names the packages of the extra themselves.
    """
    origin = _origin()
    if origin is None:
        return f"pip install 'jobsdk[{extra}]'"
    url = str(origin["url"])
    if not url.startswith("file:"):
        vcs = origin.get("vcs_info")
        revision = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if isinstance(vcs, dict) else url
        return f"pip install 'jobsdk[{extra}] @ {revision}'"
    path = Path(unquote(urlsplit(url).path))
    if not path.exists():
        return "pip install " + " ".join(map(shlex.quote, requirements(extra)))
    info = origin.get("dir_info")
    edit = "-e " if isinstance(info, dict) and info.get("editable") else ""
    return f"pip install {edit}{shlex.quote(f'{path}[{extra}]')}"


def requirements(extra: str) -> list[str]:
    """The requirements of an extra, with those of other extras that it names."""
    found: list[str] = []
    for line in metadata.requires("jobsdk") or []:
        requirement, _, marker = line.partition(";")
        if marker.replace("'", '"').strip() == f'extra == "{extra}"':
            name, _, inner = requirement.partition("[")
            others = inner.partition("]")[0].split(",") if name == "jobsdk" else []
            found += [one for other in others for one in requirements(other)] if others else [requirement.strip()]
    return found


def extras() -> dict[str, bool]:
    """Each extra for users, and whether the packages that it names are installed."""
    try:
        named = metadata.metadata("jobsdk").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:  # run from a folder, without installation
        return {}
    return {extra: all(map(_is_installed, requirements(extra))) for extra in sorted(named) if extra not in _OURS}


def commit() -> str | None:
    """The commit that this jobsdk is of; None where neither the package nor a repository around it says."""
    try:
        return (_HERE / "commit.txt").read_text().strip()
    except OSError:
        pass
    if not (_HERE.parent / ".git").exists():
        return None
    from jobsdk.snapshot.git import commit_of

    found = commit_of(_HERE)
    return found and found.commit[:12] + "+modified" * found.is_dirty


def version_text() -> str:
    """What `jobsdk --version` prints."""
    from jobsdk import __version__

    of, known = commit(), extras()
    there = ", ".join(name for name, is_there in known.items() if is_there)
    missing = ", ".join(name for name, is_there in known.items() if not is_there)
    lines: Iterator[str] = filter(None, [
        f"jobsdk {__version__}" + (f" (commit {of})" if of else ""),
        there and f"extras: {there}",
        missing and f"not installed: {missing}",
    ])  # fmt: skip
    return "\n".join(lines)


def _is_installed(requirement: str) -> bool:
    import re

    try:
        metadata.version(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
    except metadata.PackageNotFoundError:
        return False
    return True


def _origin() -> dict[str, object] | None:
    """direct_url.json: pip writes it where it installed from a folder, file or repository, not from an index."""
    try:
        text = metadata.distribution("jobsdk").read_text("direct_url.json")
        found = json.loads(text) if text else None
    except (metadata.PackageNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) and "url" in found else None
