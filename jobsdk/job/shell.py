"""What can be known of a command without running it: the scripts and launchers that it plainly names.

Only what is certain is reported: reading ends at the first word that the shell would work out, and at the first program
that may bring files or change the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

#: Programs after which the code folder is as it was; two words name a program and what it is told to do.
_HARMLESS = frozenset(
    "echo printf ls pwd printenv export set date hostname whoami id sleep true nvidia-smi mkdir cat which free df"
    " ulimit".split()
)
_HARMLESS_TWO = re.compile(r"pip3? (list|freeze|show|--version)|conda (activate|list|info)")
_PREFIXES = frozenset("sudo time exec nohup env".split())
_SHELLS = frozenset("bash sh dash zsh ksh".split())
_PYTHON = re.compile(r"python[0-9.]*$")
#: Launchers that start processes themselves; `python -m` names of them count too.
_LAUNCHERS = frozenset("torchrun mpirun mpiexec orterun deepspeed horovodrun accelerate srun".split())
_LAUNCHER_MODULES = re.compile(
    r"torch\.distributed\.(run|launch)|accelerate\.commands\.launch|deepspeed\.launcher\.\w+"
)
_TOKEN = re.compile(
    r"""(?P<nothing>[ \t\r]+|\\\n|(?<![^\s;&|()])\#[^\n]*)|(?P<end>[;&|()\n]+)|(?P<redirection>[<>][<>&|]*)
    |(?P<word>(?:[^\s;&|()<>'"\\]+|\\.|'[^']*'|"(?:\\.|[^"\\])*"|[\f\v])+)""",
    re.DOTALL | re.VERBOSE,
)
_QUOTED = re.compile(r"""\\(\n|.)|'([^']*)'|"((?:\\.|[^"\\])*)\"""", re.DOTALL)
_REDIRECTIONS = ("<", ">")


class Word(str):
    """A word of a command, without its quotes; `offset` is where it begins in the text."""

    offset = 0


class _Command(list[Word]):
    """The words of a simple command, and what separates it from the one before."""

    def __init__(self, after: str) -> None:
        super().__init__()
        self.after = after


def word_at(text: str, offset: int) -> Word:
    """`text` as a word that begins at `offset`."""
    word = Word(text)
    word.offset = offset
    return word


def _unquoted(match: re.Match[str]) -> str:
    if match[1] is not None:
        return match[1].strip("\n")
    return match[2] if match[2] is not None else re.sub(r'\\([\\"])', r"\1", match[3].replace("\\\n", ""))


def _split(text: str) -> Iterator[_Command]:
    """The simple commands of the text, as far as it can be split; empty ones too."""
    command = _Command("")
    position = 0
    while position < len(text) and (match := _TOKEN.match(text, position)):
        position = match.end()
        if match["end"]:
            yield command
            command = _Command(match["end"])
        elif not match["nothing"]:
            command.append(word_at(_QUOTED.sub(_unquoted, match[0]), match.start()))
    yield command


def simple_commands(text: str) -> Iterator[list[Word]]:
    """The words of each simple command of the text, as far as the text can be split."""
    return (words for command in _split(text) if (words := _without_prefix(command)))


def _without_prefix(words: list[Word]) -> list[Word]:
    """The words without assignments, and without programs that only start another."""
    position = 0
    while position < len(words):
        word = words[position]
        is_option = position > 0 and words[position - 1] in _PREFIXES and re.match(r"-(?!C|D|-chdir)", word)
        if word not in _PREFIXES and not is_option and not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", word):
            break
        position += 1
    return words[position:]


def scripts(text: str) -> Iterator[Word]:
    """The relative path of a script that the command certainly expects in its working directory: one at most.

    Only the first program of the user counts, since it may make files.
    """
    for command in _split(text):
        words = _without_prefix(command)
        if command.after.count("|") > 1 or any("$(" in word or "`" in word or word.endswith("$") for word in command):
            return
        if words and not _makes_no_files(words):
            script = _script(words)
            if script is not None and _is_plain(script):
                yield script
            return


def _makes_no_files(words: list[Word]) -> bool:
    program = words[0].rsplit("/", 1)[-1]
    if any(word.startswith(_REDIRECTIONS) for word in words):
        return False
    if _PYTHON.match(program):
        return words[1:] in (["-V"], ["-VV"], ["--version"])
    if program in ("source", "."):
        return words[1:2] != [] and words[1].endswith("activate")
    return program in _HARMLESS or _HARMLESS_TWO.fullmatch(" ".join([program, *words[1:2]])) is not None


def _script(words: list[Word]) -> Word | None:
    program = words[0].rsplit("/", 1)[-1]
    if _PYTHON.match(program):
        return _operand(words, with_argument="WX", instead="cmhV?")
    if program in _SHELLS:
        return _operand(words, with_argument="oO", instead="cs")
    return words[0] if words[0].startswith("./") else None


def _operand(words: list[Word], *, with_argument: str, instead: str) -> Word | None:
    """The script among the words of an interpreter; None if it runs something else."""
    position = 1
    while position < len(words):
        word = words[position]
        if word in ("", "-") or word.startswith((*_REDIRECTIONS, "--help", "--version")):
            return None
        if word[:1] not in "-+":
            return word
        if word.startswith("--"):
            position += word in ("--rcfile", "--init-file", "--check-hash-based-pycs")
        else:
            for at, letter in enumerate(word[1:], 1):
                if letter in instead:
                    return None
                if letter in with_argument:
                    position += at == len(word) - 1
                    break
        position += 1
    return None


def _is_plain(script: str) -> bool:
    return re.fullmatch(r"[\w./@%+,:=-]+", script) is not None and not script.startswith("/")


def launcher(text: str) -> Word | None:
    """The launcher that the command itself starts, or None."""
    for words in simple_commands(text):
        program = words[0].rsplit("/", 1)[-1]
        if program in _LAUNCHERS and (program != "accelerate" or "launch" in words[1:2]):
            name = "accelerate launch" if program == "accelerate" else program
            return word_at(name, words[0].offset + len(words[0]) - len(program))
        if _PYTHON.match(program):
            module = next((after for option, after in pairwise(words) if option == "-m"), None)
            if module is not None and _LAUNCHER_MODULES.fullmatch(module):
                return module
    return None
