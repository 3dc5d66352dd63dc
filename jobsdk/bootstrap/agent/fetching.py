"""Inputs from object stores: fetched once for all that see the run's folder, by the job's own Python."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Dict, Iterable, Iterator, List, Mapping, Optional, cast

from ..launchers import base
from ..spec import paths, variables

if TYPE_CHECKING:
    from ..spec.plan import Plan
    from ..spec.store_messages import Moved, Request, Said

Environment = Mapping[str, str]

_DONE, _ERROR = "done ", "error "  # how the note of an input that was fetched, or could not be, begins
_STALLED_S = 60.0  # without a sign of whoever fetches
_LOOK_EVERY_S = 0.1
_SAY_EVERY_S = 30.0


class FetchError(Exception):
    """Something could not be fetched; the message says what, where and how to fix it."""


def environment(plan: Plan, run_dir: str) -> Dict[str, str]:
    """What copies files has the variables of the job, its secrets among them."""
    known = {name: value for name, value in os.environ.items() if name not in variables.PRIVATE}
    return dict(known, **plan["environment"], JOBSDK_RUN_DIR=run_dir)


def argv(environ: Environment) -> List[str]:
    """The program that copies, in the Python that a rank's `python` is."""
    path = environ.get("PATH", os.defpath)
    python = shutil.which("python", path=path) or shutil.which("python3", path=path) or sys.executable
    return [python, *base.own_argv("store")[3:]]


def bring(plan: Plan, name: str, run_dir: str) -> Moved:
    """Fetch one input to its folder; what was copied. Raises FetchError.

    Of several nodes with one run folder one fetches and the others wait, as long as it gives signs of life.
    """
    target = paths.input_folder(name, run_dir)
    claim = "%s/inputs/.%s.claim" % (run_dir, name)
    while not os.path.isdir(target):
        try:
            os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            _wait(target, claim)
            continue
        _fetch_input(plan, name, run_dir, claim)
    return _noted(claim)


def _noted(claim: str) -> Moved:
    """What was copied; nothing where another one that has taken over is still at it."""
    try:
        with open(claim) as file:
            text = file.read()
    except OSError:
        return {}
    return cast("Moved", json.loads(text[len(_DONE) :])) if text.startswith(_DONE) else {}


def _wait(target: str, claim: str) -> None:
    """Until the input is there, or whoever fetches it seems to have died."""
    said, since = "", time.monotonic()
    while not os.path.isdir(target) and time.monotonic() - since < _STALLED_S:
        try:
            with open(claim) as file:
                now = file.read()
        except FileNotFoundError:
            return
        if now.startswith(_ERROR):
            raise FetchError(now[len(_ERROR) :])
        if now != said:
            said, since = now, time.monotonic()
        time.sleep(_LOOK_EVERY_S)
    if not os.path.isdir(target):
        try:
            os.unlink(claim)
        except FileNotFoundError:
            pass


def _put(partly: str, target: str) -> None:
    try:
        os.rename(partly, target)
    except OSError:
        if not os.path.isdir(target):  # else another one has taken over, and was quicker
            raise
        shutil.rmtree(partly, ignore_errors=True)


def _fetch_input(plan: Plan, name: str, run_dir: str, claim: str) -> None:
    """Fetch one input; its claim says how far that is, and how it ended."""
    target, given = paths.input_folder(name, run_dir), plan["inputs"][name]
    partly = "%s.part-%s-%d" % (claim, os.uname().nodename, os.getpid())  # nodes may share the folder
    shutil.rmtree(partly, ignore_errors=True)
    try:
        moved = copy(plan, str(given["uri"]), given["type"] == "uri_file", partly, run_dir, claim)
        _note(claim, _DONE + json.dumps(moved))
        _put(partly, target)
    except (FetchError, OSError) as error:
        shutil.rmtree(partly, ignore_errors=True)
        text = "input %s: %s" % (name, error)
        _note(claim, _ERROR + text)
        raise FetchError(text) from error


def copy(plan: Plan, uri: str, is_file: bool, target: str, run_dir: str, claim: str = "") -> Moved:
    """Copy what is at a URL into the new folder `target`; what was copied. `claim` is a file that gives signs of life.

    Raises FetchError.
    """
    import subprocess  # 10 ms that few jobs need

    from ..spec import secrets

    variables_ = environment(plan, run_dir)
    began = time.monotonic()
    request: Request = {"operation": "fetch", "url": uri, "path": target, "is_file": is_file}
    with subprocess.Popen(
        argv(variables_), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables_,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            end = last_word(_heard(process.stdout, uri, claim))
        finally:
            process.kill()
    if "done" not in end:
        raise FetchError(secrets.redactor(plan, variables_).text(end["error"]))
    return {**end["done"], "seconds": round(time.monotonic() - began, 3)}


def _heard(lines: Iterable[str], uri: str, claim: str) -> Iterator[str]:
    """The same lines; how far it is goes to the log, and to whoever waits."""
    from ..spec import secrets

    told = time.monotonic()
    for number, line in enumerate(lines):
        said = answer(line) or {}
        if "bytes" in said:
            _note(claim, "%d: %d bytes" % (number, said["bytes"]))
            if time.monotonic() - told >= _SAY_EVERY_S:
                told = time.monotonic()
                sys.stderr.write("bootstrap: %s: %d bytes so far\n" % (secrets.redacted(uri), said["bytes"]))
        yield line


def _note(claim: str, text: str) -> None:
    try:
        if claim:
            with open(claim, "w") as file:
                file.write(text)
    except OSError:  # a full disk: this node says itself what is wrong
        pass


def last_word(lines: Iterable[str]) -> Said:
    """How the program ended, by all that it has said."""
    last, end = "without a word", None
    for line in lines:
        said = answer(line)
        if said is None:
            last = line.strip() or last
        elif "bytes" not in said:
            end = said
    return end or {"error": "the process that copies it ended: %s" % last}


def answer(line: str) -> Optional[Said]:
    """What the program says in a line; None for words of a library."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return cast("Said", said) if isinstance(said, dict) and said.keys() & {"bytes", "done", "error"} else None
