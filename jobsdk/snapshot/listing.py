"""Which files belong to the code of a job.

Left out are: what `.gitignore` and `.amlignore` files say, at every level and, for `.gitignore`, of the parents up to
the git root; version control, virtual environments and caches; files that look like secrets. Deeper files win over
shallower ones, and at one level `.amlignore` wins over `.gitignore`. What jobsdk leaves out by itself comes back with a
line `!name` in an `.amlignore`, without wildcards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobsdk.errors import JobsdkError
from jobsdk.snapshot.digests import Digests, Stamp
from jobsdk.snapshot.ignore import Rules

if TYPE_CHECKING:
    from jobsdk.findings import Finding

_BUILT_IN = """\
.git
.hg
.svn
.venv/
venv/
node_modules/
__pycache__/
*.pyc
.mypy_cache/
.ruff_cache/
.pytest_cache/
.ipynb_checkpoints/
.DS_Store
"""
_SECRET_NAMES = re.compile(
    r"\.env|\.env\.(?!(?:example|template|sample|dist)$).+|.+\.(?:pfx|p12|jks|keystore|kdbx)"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?|\.?netrc|_netrc|\.pypirc|\.pgpass|\.git-credentials|\.dockercfg"
    r"|credentials\.json|client_secret.*\.json|kubeconfig|.+\.kubeconfig",
    re.IGNORECASE,
)
# Known by their folder: the names alone mean nothing.
_SECRET_PATHS = ("/.aws/credentials", "/.kube/config", "/.docker/config.json")
_NAMED = 3  # links that lead out of the folder, and paths that are left out
_FEW = 3  # files that may be left out without a word
_LARGE, _MANY = 100_000_000, 10_000  # bytes and files of a copy that is worth a word
#: What programs make, and code hardly ever means when it is ignored.
_GENERATED = re.compile(
    r"/\.[^/]+/?$|/(build|dist|htmlcov|lightning_logs|logs|mlruns|outputs|site|wandb|[^/]+\.egg-info|__pycache__)/$"
    r"|(\.log|\.pyc|\.pyo|\.swp|\.tmp|~)$"
)
_KEY_FILES = (".pem", ".key")  # these hold certificates as often as keys
#: How a file with a private key begins, whatever its name; comments and certificates may come before the key.
_KEY_HEAD = re.compile(
    rb"(?:\xef\xbb\xbf)?"
    rb"(?:\s|#[^\n]*\n|(?:Bag|Key) Attributes[^\n]*\n(?: [^\n]*\n)*"
    rb"|-----BEGIN (?:[A-Z0-9]+ )*(?:PARAMETERS|CERTIFICATE)-----[^-]*-----END [^\n]*\n)*"
    rb"(?:-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----"
    rb"|PuTTY-User-Key-File-|AGE-SECRET-KEY-|untrusted comment: (?:minisign|rsign|signify)[^\n]* secret key"
    rb'|\{\s*"type":\s*"service_account")'
)
_HEAD = 4096  # bytes
_LEAST_KEY = 40  # bytes


class File(NamedTuple):
    """A file that belongs to the code. `path` is relative to the code folder, POSIX."""

    path: str
    size: int  # bytes
    executable: bool
    link: str | None  # the target of a symbolic link that stays one
    source: str  # where it is read from; outside the folder when a link led there
    stamp: Stamp


class LeftOut(NamedTuple):
    """A file or folder (its path then ends with `/`) that does not belong to the code, and why."""

    path: str
    reason: str
    secret: bool  # left out only because it looks like a secret: the user should hear of it
    rule: str = ""  # the ignore file and the line in it: `.gitignore:1`


class Listing(NamedTuple):
    """What a snapshot would take, sorted by path, and what it would leave out. Ignored folders are not entered."""

    source: Path
    files: tuple[File, ...]
    left_out: tuple[LeftOut, ...]
    outside: tuple[tuple[str, str], ...] = ()  # links that lead out of the folder and are followed: (path, target)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    @property
    def warnings(self) -> list[str]:
        """One message for each file that looks like a secret."""
        return [
            f"{item.path} {item.reason} and is left out of the code. To take it all the same, add a line "
            f"'!{item.path}' to {self.source / '.amlignore'}"
            for item in self.left_out
            if item.secret
        ]

    @property
    def findings(self) -> list[Finding]:
        """Warnings of what the user may miss in the code, and of a copy that is large."""
        from jobsdk.bootstrap.spec.text import bytes_text
        from jobsdk.findings import Finding

        said = list(self.warnings)
        missed = [item for item in self.left_out if item.rule and not _GENERATED.search(f"/{item.path}")]
        if len(missed) > _FEW or any(item.path.endswith("/") for item in missed):
            said.append(f"left out: {summary(missed)}")
        found = [Finding("warning", ("code",), text) for text in said]
        if self.size > _LARGE or len(self.files) > _MANY:
            text = f"{bytes_text(self.size)} in {len(self.files):,} files are copied"
            found.append(Finding("warning", ("code",), text, "leave out what the job does not need with .amlignore"))
        return found

    def to_dict(self) -> dict[str, object]:
        """The facts to keep beside a run, ready for JSON."""
        return {
            "source": str(self.source),
            "files": len(self.files),
            "size": self.size,
            "left_out": [{"path": one.path, "reason": one.reason, "rule": one.rule} for one in self.left_out],
        }

    @property
    def words_on_outside(self) -> str:
        """Which links lead out of the folder, the first few by name; "" if none do."""
        if not self.outside:
            return ""
        from jobsdk.findings import shorten

        known = self.outside[:_NAMED]
        some = ", ".join(f"{shorten(path, 30)} -> {shorten(target, 40, keep_end=True)}" for path, target in known)
        more = f" and {len(self.outside) - _NAMED} more" if len(self.outside) > _NAMED else ""
        are = "link leads" if len(self.outside) == 1 else "links lead"
        return f"{len(self.outside)} {are} out of the code folder: {some}{more}"


def summary(left_out: Iterable[LeftOut]) -> str:
    """`data/ (.gitignore:1), 3 more`: the folders first."""
    folders_first = sorted(left_out, key=lambda item: not item.path.endswith("/"))
    named = [f"{item.path} ({item.rule or item.reason})" for item in folders_first[:_NAMED]]
    more = len(folders_first) - len(named)
    return ", ".join([*named, f"{more} more"] if more else named)


def scan(source: Path) -> Listing:
    """List what a snapshot of the folder (or single file) `source` would take; reads names and sizes only.

    Raises JobsdkError if `source` does not exist or a folder or an ignore file in it cannot be read.
    """
    source = Path(os.path.abspath(source))
    try:
        if source.is_file():  # named by the user: no rule applies
            return Listing(source, (_file(source.name, str(source), source.stat()),), ())
        if not source.is_dir():
            raise JobsdkError(f"code folder {source} does not exist")
        walk = _Walk(os.path.realpath(source), Digests(str(source)))
        walk.run()
    except OSError as error:
        raise JobsdkError(
            f"cannot read {error.filename or source}: {error.strerror}. "
            "Make it readable, or leave it out with a line in .amlignore"
        ) from error
    walk.files.sort()
    walk.left_out.sort()
    return Listing(source, tuple(walk.files), tuple(walk.left_out), tuple(sorted(walk.outside)))


# --- walking


class _Level(NamedTuple):
    """One ignore file in force. `skip` characters of a path from the top lead to the file's folder."""

    skip: int
    rules: Rules


class _Folder(NamedTuple):
    real: str  # to read
    path: str  # in the listing: "" or "a/b/"
    levels: tuple[_Level, ...]  # deepest last
    named: tuple[_Level, ...]  # from .amlignore: what is to be taken though jobsdk would leave it out
    outside: tuple[str, ...]  # real folders that links out of the tree led through, from the first on


class _Walk:
    def __init__(self, root: str, known: Digests) -> None:
        from jobsdk.home import home

        self.root = root
        self.known = known
        self.home = os.path.realpath(home())
        self.files: list[File] = []
        self.left_out: list[LeftOut] = []
        self.outside: list[tuple[str, str]] = []
        git_root = _git_root(root)
        # Paths given to rules start at the git root, so that those of the parents fit too.
        self.above = f"{os.path.relpath(root, git_root)}/" if git_root not in (None, root) else ""
        self.git_root = git_root or root
        self.built_in = Rules.parse(_BUILT_IN, "built-in")

    def run(self) -> None:
        waiting = [_Folder(self.root, "", self._levels_above(), (), ())]
        while waiting:
            waiting += self._visit(waiting.pop())

    def _levels_above(self) -> tuple[_Level, ...]:
        """The .gitignore files of the parents, but for those that ignore the code folder itself: it was asked for."""
        levels = []
        parts = self.above.split("/")[:-1]
        for depth in range(len(parts)):
            folder = "/".join(parts[:depth])
            path = os.path.join(self.git_root, folder, ".gitignore")
            if not os.path.exists(path):
                continue
            rules = Rules.parse(_read_text(path), path)
            way = range(depth + 1, len(parts) + 1)  # the folders from here down to the code
            decisions = [rules.decide("/".join(parts[depth:stop]), True) for stop in way]
            if all(rule is None or rule.negated for rule in decisions):
                levels.append(_Level(len(folder) + 1 if folder else 0, rules))
        return tuple(levels)

    def _visit(self, folder: _Folder) -> list[_Folder]:
        """Take the files of a folder; the folders to go on with."""
        with os.scandir(folder.real) as found:
            entries = list(found)
        names = {entry.name for entry in entries}
        levels, named = folder.levels, folder.named
        full = self.above + folder.path
        for name in (".gitignore", ".amlignore"):
            if name in names:
                rules = Rules.parse(_read_text(os.path.join(folder.real, name)), folder.path + name)
                levels = (*levels, _Level(len(full), rules))
                if name == ".amlignore":
                    named = (*named, _Level(len(full), rules.only_named()))
        if "pyvenv.cfg" in names and folder.path and not _named(named, full[:-1], True):
            self._leave(folder.path, "is a virtual environment")
            return []

        folders = []
        for entry in entries:
            name, path = entry.name, folder.path + entry.name
            try:
                is_link = entry.is_symlink()
                is_folder = entry.is_dir()
                is_file = not is_folder and entry.is_file()
            except OSError as error:  # a link that leads to itself, or into a folder that is closed to us
                self._leave(path, f"is a link that cannot be followed ({error.strerror})")
                continue
            reason, rule = self._ignored(levels, named, path, name, is_folder)
            if reason:
                self._leave(path + "/" if is_folder else path, reason, rule=rule)
                continue
            outside = folder.outside
            real = entry.path
            if is_link:
                real = os.path.realpath(entry.path)
                if not (is_folder or is_file or os.path.exists(real)):
                    self._leave(path, f"is a broken link to {os.readlink(entry.path)}")
                    continue
                if not outside and _within(real, self.root):
                    link = self._link(entry.path, path, real)
                    self.files.append(File(path, 0, False, link, entry.path, Stamp(0, 0, 0, 0)))
                    continue
                if is_folder:
                    if any(_within(here, real) for here in (folder.real, self.root, *outside)):
                        self._leave(path + "/", f"is a link to {real}, which holds the link itself")
                        continue
                    outside = (*outside, real)
            if is_folder:
                if _within(real, self.home) and not _within(self.root, self.home):
                    self._leave(path + "/", "is where jobsdk keeps its runs")
                else:
                    folders.append(_Folder(real, path + "/", levels, named, outside))
                    if is_link and not folder.outside:
                        self.outside.append((path, real))
            elif not is_file:
                self._leave(path, "is no file (a socket, pipe or device)")
            else:
                file = _file(path, real, entry.stat())
                secret = self._secret(file, name)
                if secret and not _named(named, self.above + path, False):
                    self._leave(path, secret, secret=True)
                    continue
                # What is taken by its name alone never counts as known, so that it is found when the name is gone.
                self.files.append(file._replace(stamp=file.stamp._replace(ctime_ns=0)) if secret else file)
                if is_link and not folder.outside:
                    self.outside.append((path, real))
        return folders

    def _ignored(
        self, levels: tuple[_Level, ...], named: tuple[_Level, ...], path: str, name: str, is_folder: bool
    ) -> tuple[str, str]:
        """Why rules leave this path out, and which one; "" if they do not."""
        full = self.above + path
        for level in reversed(levels):
            rule = level.rules.decide(full[level.skip :], is_folder)
            if rule is not None:
                if not rule.negated:
                    place = f"{level.rules.origin}:{rule.line}"
                    return f"is ignored by {place}: {rule.pattern}", place
                break
        rule = self.built_in.decide(name, is_folder)
        if rule is not None and not _named(named, full, is_folder):
            return f"is never taken (built-in rule {rule.pattern})", ""
        return "", ""

    def _secret(self, file: File, name: str) -> str:
        """Why a file looks secret; "" if it does not."""
        if _looks_secret(file.path, name, file.source):
            return "looks like a secret"
        # A file that has not changed since it was sent has been looked into then.
        if file.size >= _LEAST_KEY and not self.known.knows(file.path, file.stamp) and _holds_key(file.source):
            return "holds a private key"
        return ""

    def _link(self, link: str, path: str, real: str) -> str:
        """The target to write for a link inside the tree: as it is, or rewritten if it could lead out of a copy."""
        from jobsdk.bootstrap.transport.extraction import stays_inside

        text = os.readlink(link)
        if not stays_inside(path.count("/"), text):
            return os.path.relpath(real, os.path.dirname(link))
        return text

    def _leave(self, path: str, reason: str, secret: bool = False, rule: str = "") -> None:
        self.left_out.append(LeftOut(path, reason, secret, rule))


def _git_root(folder: str) -> str | None:
    """The nearest folder at or above that holds `.git`."""
    while not os.path.exists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    return folder


def _named(named: tuple[_Level, ...], full: str, is_folder: bool) -> bool:
    """Whether an .amlignore names this path to be taken."""
    return any(level.rules.decide(full[level.skip :], is_folder) for level in named)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _looks_secret(path: str, name: str, real: str) -> bool:
    target = os.path.basename(real)
    if _SECRET_NAMES.fullmatch(name) or (target != name and _SECRET_NAMES.fullmatch(target)):
        return True
    if name.lower().endswith(_KEY_FILES):
        with open(real, "rb") as file:
            return b"PRIVATE KEY" in file.read(1 << 16)
    return f"/{path}".endswith(_SECRET_PATHS)


def _holds_key(path: str) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # said when it is to be copied
    try:
        return _KEY_HEAD.match(os.read(file, _HEAD)) is not None
    except OSError:
        return False
    finally:
        os.close(file)


def _file(path: str, source: str, facts: os.stat_result) -> File:
    return File(path, facts.st_size, bool(facts.st_mode & 0o111), None, source, Stamp.of(facts))


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
