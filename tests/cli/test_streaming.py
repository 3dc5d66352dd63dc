"""Ctrl-C while a run is looked at from another terminal than the one that started it."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from jobsdk import MLClient, command

from .conftest import ARGV

#: Makes the terminal on stdin that of its session, as a login does, so that the key Ctrl-C is a signal.
LOGIN = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.mark.parametrize(("answer", "code", "status"), [(b"c\n", 130, "Canceled"), (b"d\n", 0, "Running")])
def test_ctrl_c_while_streaming_asks_whether_to_detach_or_cancel(
    work: Path, answer: bytes, code: int, status: str
) -> None:
    client = MLClient()
    run = client.jobs.create_or_update(command(command="echo up; sleep 600", grace_period=0.5), name="long")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [ARGV[0], "-c", LOGIN, *ARGV, "job", "stream", "long"], stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    _shown(ours, b"up")
    os.write(ours, b"\x03")
    _shown(ours, b"(d)etach and let the run go on, or (c)ancel it?")
    os.write(ours, answer)
    said = _rest(ours)
    assert process.wait(200) == code
    assert client.jobs.get("long").status == status
    assert (b"the run goes on: jobsdk job stream long" in said) == (status == "Running")
    client.jobs.begin_cancel(run).result(200)


@pytest.mark.parametrize("words", [["run"], ["job", "stream", "long"]])
def test_what_is_written_while_it_is_being_cancelled_is_shown_and_once(work: Path, words: list[str]) -> None:
    """Whatever has come between Ctrl-C and the moment at which the lines are shown again."""
    text = "trap 'echo saving; echo saved; exit' TERM; echo up; while :; do sleep 0.05; done"
    if words[0] == "run":
        words = ["run", "--set", "name=long", "--set", "limits.grace_period=600", "sh", "-c", text]
    else:
        MLClient().jobs.create_or_update(command(command=text, grace_period=600), name="long")
    # Its own cancelling returns when the last line has been written, as it does on a machine that is slow.
    slow = (
        "import sys, jobsdk.client.run as r; from jobsdk.cli import main; cancel = r.Run.cancel\n"
        "def slowly(run): cancel(run); run.target.wait(run.folder, None)\n"
        "r.Run.cancel = slowly; sys.exit(main())"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [ARGV[0], "-c", LOGIN, ARGV[0], "-c", slow, *words], stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    _shown(ours, b" up")
    os.write(ours, b"\x03")
    if words[0] == "job":
        _shown(ours, b"ancel it?")
        os.write(ours, b"c\n")
    said = _rest(ours)
    assert process.wait(200) == 130
    assert said.count(b" saving") == said.count(b" saved") == 1, said
    assert b" up" not in said


def _shown(terminal: int, text: bytes) -> None:
    """Read until `text` has come. Raises OSError if the other side leaves before that."""
    so_far = b""
    while text not in so_far:
        so_far += os.read(terminal, 4096)


def _rest(terminal: int) -> bytes:
    """All that comes until the other side has left."""
    said = b""
    try:
        while part := os.read(terminal, 4096):
            said += part
    except OSError:
        pass
    os.close(terminal)
    return said
