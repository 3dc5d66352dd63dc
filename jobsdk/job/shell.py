"""What can be known of a command without running it: the scripts and launchers that it plainly names.

Only what is certain is said: reading ends at the first word that the shell would work out, and at the first program
that may bring files or change the folder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

#: Programs after which the code folder is as it was.
_HARMLESS = frozenset(
    "echo printf ls pwd env printenv export set date hostname whoami id sleep true nvidia-smi pip pip3 conda mkdir cat"
    " which free df ulimit".split()
)
_PREFIXES = frozenset("sudo time exec nohup env".split())
_SHELLS = frozenset("bash sh dash zsh ksh".split())
_PYTHON = re.compile(r"python[0-9.]*$")
#: Launchers that start processes themselves; `python -m` names of them count too.
_LAUNCHERS = frozenset("torchrun mpirun mpiexec orterun deepspeed horovodrun accelerate".split())
_LAUNCHER_MODULES = re.compile(
    r"torch\.distributed\.(run|launch)|accelerate\.commands\.launch|deepspeed\.launcher\.\w+"
)
_SEPARATE = re.compile(r"[;&|()\n]+")

#: A comment, or as the group what may hold a # that begins none.
_COMMENT = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*"|\\.)|(?<![^\s;&|()])#[^\n]*""", re.DOTALL)
_REDIRECTIONS = ("<", ">")


def simple_commands(text: str) -> list[list[str]]:
    """The words of each simple command of the text, as far as the text can be split."""
    text = _COMMENT.sub(lambda match: match[1] or "", text.replace("\\\n", " "))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace = " \t\r"
    lexer.commenters = ""
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if _SEPARATE.fullmatch(word):
                commands.append([])
            else:
                commands[-1].append(word)
    except ValueError:  # a quote is not closed
        pass
    return [words for command in commands if (words := _without_prefix(command))]


def _without_prefix(words: list[str]) -> list[str]:
    """The words without assignments, and without programs that only start another."""
    position = 0
    while position < len(words):
        word = words[position]
        is_option = word.startswith("-") and position > 0 and words[position - 1] in _PREFIXES
        if word not in _PREFIXES and not is_option and not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", word):
            break
        position += 1
    return words[position:]


def scripts(text: str) -> Iterator[str]:
    """The relative paths of scripts that the command certainly expects in its working directory."""
    for words in simple_commands(text):
        program = words[0].rsplit("/", 1)[-1]
        if _PYTHON.match(program):
            script = _operand(words, with_argument="WX", instead="cm")
        elif program in _SHELLS:
            script = _operand(words, with_argument="oO", instead="cs")
        elif words[0].startswith("./"):
            script = words[0]
        elif program in _HARMLESS and not any(word.startswith(_REDIRECTIONS) for word in words):
            continue
        else:
            return
        if script is not None and _is_plain(script):
            yield script
        if any(word[:1] == ">" for word in words):
            return


def _operand(words: list[str], *, with_argument: str, instead: str) -> str | None:
    """The script among the words of an interpreter; None if it runs something else."""
    position = 1
    while position < len(words):
        word = words[position]
        if word in ("", "-") or word.startswith(_REDIRECTIONS):
            return None
        if word[:1] not in "-+":
            return word
        if not word.startswith("--"):
            if any(letter in instead for letter in word[1:]):
                return None
            position += word[-1] in with_argument
        elif word.startswith(("--rcfile", "--init-file")):
            position += 1
        position += 1
    return None


def _is_plain(script: str) -> bool:
    return re.fullmatch(r"[\w./@%+,:=-]+", script) is not None and not script.startswith("/")


def launcher(text: str) -> str | None:
    """The launcher that the command itself starts, or None."""
    for words in simple_commands(text):
        program = words[0].rsplit("/", 1)[-1]
        if program in _LAUNCHERS and (program != "accelerate" or "launch" in words[1:2]):
            return "accelerate launch" if program == "accelerate" else program
        if _PYTHON.match(program) and "-m" in words[:-1]:
            module = words[words.index("-m") + 1]
            if _LAUNCHER_MODULES.fullmatch(module):
                return module
    return None
