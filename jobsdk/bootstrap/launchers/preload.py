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
    """The process that imports and forks. `pid` ends when the ranks have become children of this process."""

    def __init__(self, modules: Sequence[str], command: str, ranks: Sequence[Rank], log: str) -> None:
        """Starts it. Raises Unfit, or OSError."""
        argv = words(command)
        if not hasattr(os, "memfd_create"):
            raise Unfit("this system cannot hand the ranks over to another parent")
        if any(name == "BASH_ENV" or name.startswith("BASH_FUNC_python") for name in ranks[0].environment):
            raise Unfit("BASH_ENV or a function of bash would come first")
        common, withheld = _split([rank.environment for rank in ranks])
        program = _program(argv[0], common)
        _probe(program, argv[0], common)
        common = _as_bash_leaves(common, program)
        request = {
            "environment": _as_text(common),
            "modules": list(modules),
            "folder": _script_folder(argv),
            "python_path": common.get("PYTHONPATH"),
            "withheld": withheld,
            "ranks": [
                {"environment": _as_text(_as_bash_leaves(rank.environment, program)), "log": rank.log} for rank in ranks
            ],
        }
        self.log = log
        self._pending = b""
        answer, theirs = os.pipe()
        asked = os.memfd_create("preload")
        try:
            os.set_blocking(answer, False)
            with os.fdopen(os.dup(asked), "w") as file:
                json.dump(request, file)
            for number in (asked, theirs):
                os.set_inheritable(number, True)
            environment = dict(_with_folder(common), **{_FILES: "%d %d" % (asked, theirs)})
            self.pid = processes.start(argv, environment, log, program)
        except BaseException:
            os.close(answer)
            raise
        finally:
            os.close(asked)
            os.close(theirs)
        self.answer: Optional[int] = answer

    def read(self) -> Optional[Dict[str, Any]]:
        """Its one message, when it has come: {"pids": [...]} in the order of the ranks, or {"refused": why}."""
        if self.answer is None:
            return None
        try:
            while True:
                piece = os.read(self.answer, 65536)
                self._pending += piece
                if not piece:
                    break
        except BlockingIOError:
            pass
        line, newline, _ = self._pending.partition(b"\n")
        if not newline:
            return None
        self.close()
        message: Dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        if self.answer is not None:
            os.close(self.answer)
            self.answer = None

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


def _program(name: str, environment: Mapping[str, str]) -> str:
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
