"""Starting a node's ranks from one Python that has imported what all need: see preloaded/sitecustomize.py.

Ranks started so share the memory of what was imported, and find it imported already. Only a command of the form
`python script.py ...` or `python -m module ...` can be started so; problems are reported, and the ranks then start as
usual.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..failures import tracebacks
from ..system import processes
from . import base

if TYPE_CHECKING:
    from ..spec.ranks import Rank

_FILES = "JOBSDK_PRELOAD"
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "preloaded")
_PROBE = "import sys; sys.exit(not hasattr(sys.modules.get('sitecustomize'), '_become'))"

#: Words that every shell passes on as they are, and quotes around nothing that it would work out.
_WORD = re.compile(r"""(?:[A-Za-z0-9_@%+=:,./-]|'[^']*'|"[^"$`\\!]*")+""")
_SPACE = re.compile(r"(?:\\\n)*[ \t](?:[ \t]|\\\n)*")
_QUOTED = re.compile(r"""'([^']*)'|"([^"]*)\"""")
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")


class Unfit(Exception):
    """Why the ranks cannot be started by forking; the text goes on after "preload: "."""


def words(command: str) -> List[str]:
    """The words of a command of the form `python [-u] script.py ...` or `python [-u] -m module ...`.

    Raises Unfit for any other, and where a shell would do more than to split it into words.
    """
    found: List[str] = []
    position, text = 0, command.strip(" \t\n")
    while position < len(text):
        word = _WORD.match(text, position)
        if word is None:
            break
        found.append(_QUOTED.sub(lambda quoted: quoted[1] or quoted[2] or "", word[0]))
        space = _SPACE.match(text, word.end())
        position = space.end() if space else word.end()
        if space is None and position < len(text):
            break
    rest = found[2:] if found[1:2] == ["-u"] else found[1:]
    names_code = len(rest) > 1 if rest[:1] == ["-m"] else bool(rest) and not rest[0].startswith("-")
    if position < len(text) or not found or not _PYTHON.fullmatch(found[0]) or not names_code:
        raise Unfit("the command is not of the form 'python script.py ...' or 'python -m module ...'")
    return found


def fits(command: str) -> bool:
    """Whether a command is of the form that can be preloaded."""
    try:
        return bool(words(command))
    except Unfit:
        return False


class Preload:
    """The process that imports, and forks the ranks: of one attempt, or of each where it `stays`.

    When it has forked them, they are children of this process.
    """

    def __init__(self, modules: Sequence[str], command: str, ranks: Sequence[Rank], log: str, *, stays: bool) -> None:
        """Starts it. Raises Unfit, or OSError."""
        argv = words(command)
        if not hasattr(os, "memfd_create"):
            raise Unfit("this system cannot hand the ranks over to another parent")
        common, _ = _split([rank.environment for rank in ranks])
        program = _program(argv[0], ranks)
        _probe(program, argv[0], common)
        self.stays = stays
        self.log = log
        self._command = argv, program
        self._modules = list(modules)
        self._pending = b""
        self.answer, theirs = os.pipe()
        ordered, self._orders = os.pipe()
        self._request = os.memfd_create("preload")
        self._files = [self.answer, self._orders, self._request]
        try:
            os.set_blocking(self.answer, False)
            self._write(ranks)
            files = (os.dup(self._request), ordered, theirs)
            self._files.append(files[0])
            for number in files:
                os.set_inheritable(number, True)
            environment = dict(_with_folder(_as_bash_leaves(common, program)), **{_FILES: "%d %d %d" % files})
            self.pid = processes.start(argv, environment, log, program)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(theirs)
            os.close(ordered)
        os.close(self._files.pop())

    def order(self, command: str, ranks: Sequence[Rank]) -> bool:
        """Have ranks forked again; whether `command` is still one that this process has imported for."""
        try:
            argv = words(command)
            if self._command != (argv, _program(argv[0], ranks)):
                return False
            self._write(ranks)
            os.write(self._orders, b".")
        except (Unfit, OSError):  # OSError: it has ended
            return False
        return True

    def _write(self, ranks: Sequence[Rank]) -> None:
        argv, program = self._command
        common, withheld = _split([rank.environment for rank in ranks])
        common = _as_bash_leaves(common, program)
        request = {
            "environment": _as_text(common),
            "modules": self._modules,
            "folder": _script_folder(argv),
            "python_path": common.get("PYTHONPATH"),
            "withheld": withheld,
            "stays": self.stays,
            "ranks": [
                {"environment": _as_text(_as_bash_leaves(rank.environment, program)), "log": rank.log} for rank in ranks
            ],
        }
        os.ftruncate(self._request, 0)
        with os.fdopen(os.dup(self._request), "w") as file:
            file.seek(0)
            json.dump(request, file)

    def read(self) -> Optional[Dict[str, Any]]:
        """Its message, once for each order: {"pids": [...]} in the order of the ranks, or {"refused": why}."""
        try:
            while self._files:
                piece = os.read(self.answer, 65536)
                self._pending += piece
                if not piece:
                    break
        except BlockingIOError:
            pass
        line, newline, rest = self._pending.partition(b"\n")
        if not newline:
            return None
        self._pending = rest
        message: Dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Let go of it; while it waits for an order, it then ends."""
        while self._files:
            os.close(self._files.pop())

    def last_words(self, code: int, signum: Optional[int]) -> str:
        """How it ended without a message."""
        words = tracebacks.last_words(self.log)
        said = words["error"] or (words["last_lines"] or [""])[-1]
        return "the process that imports %s%s" % (tracebacks.describe(code, signum), said and ": " + said)


def _split(environments: Sequence[Mapping[str, str]]) -> Tuple[Dict[str, str], List[str]]:
    """The variables that all ranks have alike, and the names of the others."""
    first, names = environments[0], {name for environment in environments for name in environment}
    differing = {name for name in names if any(env.get(name) != first.get(name) for env in environments)}
    return {name: value for name, value in first.items() if name not in differing}, sorted(differing)


def _program(name: str, ranks: Sequence[Rank]) -> str:
    environment = ranks[0].environment
    if any(variable == "BASH_ENV" or variable.startswith("BASH_FUNC_python") for variable in environment):
        raise Unfit("BASH_ENV or a function of bash would come first")
    found = os.path.abspath(name) if "/" in name else base.find(name, environment.get("PATH"))
    if found is None:
        raise Unfit("there is no %s on PATH" % name)
    return found


def _as_bash_leaves(environment: Mapping[str, str], program: str) -> Dict[str, str]:
    """`environment` as a command that bash starts finds it."""
    here = os.getcwd()
    said = environment.get("PWD", "")
    here = said if os.path.isabs(said) and os.path.exists(said) and os.path.samefile(said, here) else here
    return {"SHLVL": "0", **environment, "PWD": here, "_": program}


def _as_text(environment: Mapping[str, str]) -> Dict[str, str]:
    """One character for each byte, whatever the encoding of the Python that reads it."""
    return {
        os.fsencode(name).decode("latin-1"): os.fsencode(value).decode("latin-1") for name, value in environment.items()
    }


def _script_folder(argv: Sequence[str]) -> str:
    """sys.path[0] as Python will set it."""
    script = next(word for word in argv[1:] if word != "-u")
    path = os.path.realpath(script)
    if script == "-m":
        return os.getcwd()
    return path if os.path.isdir(path) or path.endswith((".zip", ".pyz", ".pyzw")) else os.path.dirname(path)


def _with_folder(environment: Mapping[str, str]) -> Dict[str, str]:
    path = environment.get("PYTHONPATH")
    return dict(environment, PYTHONPATH=_FOLDER + (os.pathsep + path if path else ""))


def _probe(program: str, name: str, environment: Mapping[str, str]) -> None:
    """Make sure that this Python imports our module when it starts: it would run the user's script otherwise."""
    import subprocess

    variables = _with_folder(environment)
    variables.pop("PYTHONINSPECT", None)
    done = subprocess.run(
        [name, "-c", _PROBE], executable=program, env=variables, stdin=subprocess.DEVNULL,
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Unfit("%s does not import sitecustomize from PYTHONPATH" % program)
