"""What programs, jobs and nodes write tries to do something to the terminal of who looks at it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tty
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobsdk import MLClient, command
from jobsdk.bootstrap.spec import paths
from jobsdk.client.run import Run
from jobsdk.terminal import Guard

#: Text, tabs, ends of lines, carriage returns and colors.
HARMLESS = re.compile(
    r"(?:\x1b\[[0-9;:]*m|[\t\n\r\x20-\x7e]|(?![\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])[\u00a0-\U0010ffff])*"
)
ATTACKS = [
    "\x1b]0;title\x07", "\x1b]52;c;Y2xpcA==\x1b\\", "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x1b[2J\x1b[H", "\x1b[10;10H", "\x1b[A", "\x1b[K", "\x1b[6n", "\x1b[c", "\x1b[?1049h", "\x1b[>4;2m", "\x1b[?25l",
    "\x1bc", "\x1b(0", "\x1bP+q544e\x1b\\", "\x1b_Gf=32\x1b\\", "\x1b^pm\x1b\\", "\x1bXsos\x1b\\",
    "\x9b2J", "\x9d0;c1 title\x9c", "\x90q\x9c", "\x85", "\x8d", "\x07", "\x08\x08\x08", "\x0e", "\x7f", "\x00",
    "\u202eback\u202c", "\u2066iso\u2069", "\u200f", "\u061c",
]  # fmt: skip
NASTY = "".join(f"a{attack}z" for attack in ATTACKS)
RED = "\x1b[31mred\x1b[0m \x1b[38;5;9mred\x1b[m \x1b[38:2::255:0:0mred\x1b[m"

PIECES = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.text(max_size=20).map(str.encode),
        st.sampled_from([*ATTACKS, RED, "\x1b", "[", "]", "31m", "m", "\\", "\x07", "\n", "\x1b[", "\x9b", "ü"]).map(
            lambda text: text.encode()
        ),
        st.text("\x1b[]0123;:?m\\P_ \x07\x9b\x9c\x9d\n", max_size=12).map(str.encode),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal that changes nothing of what is written to it."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def through(terminal: tuple[int, int], pieces: Sequence[bytes]) -> str:
    """What of some writes reaches the terminal."""
    ours, theirs = terminal
    with open(theirs, "wb", closefd=False) as out:
        guard = Guard(out)
        for piece in pieces:
            guard.write(piece)
        guard.flush()
        out.write(b"\0")  # the end
    found = b""
    while not found.endswith(b"\0"):
        found += os.read(ours, 4096)
    return found[:-1].decode()


@given(PIECES)
@example([b"\x1b]0;tit", b"le\x07seen"])
@example([b"\x1b", b"]52;c;", b"Y2xp", b"\x1b", b"\\seen"])
@example([b"\x1b[", b"2", b"J"])
@example([b"\xc2", b"\x9b", b"2J"])
@example([b"\x1b[" + b"0" * 100, b"J"])
@example([b"\x1b\x1b[2J[2J"])
def test_nothing_but_text_and_colors_reaches_a_terminal(terminal: tuple[int, int], pieces: list[bytes]) -> None:
    assert HARMLESS.fullmatch(through(terminal, pieces))


@given(PIECES)
def test_in_how_many_pieces_it_comes_changes_nothing(terminal: tuple[int, int], pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert through(terminal, [whole[at : at + 1] for at in range(len(whole))]) == through(terminal, [whole])


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"]) | st.sampled_from("\t\n\r")))
def test_text_passes_unchanged(terminal: tuple[int, int], text: str) -> None:
    assert through(terminal, [text.encode()]) == text


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (RED, RED),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]0;title\x1b\\b", "ab"),
        ("a\x1b]0;no end\nb", "a\nb"),  # it does not hide what comes after
        ("a\x1b[2Jb\x9b1;1Hc", "abc"),
        ("10 %\r20 %\x1b[K", "10 %\r20 %"),
        ("日本 \U0001f600 ü", "日本 \U0001f600 ü"),
    ],
)
def test_what_is_seen(terminal: tuple[int, int], written: str, seen: str) -> None:
    assert through(terminal, [written.encode()]) == seen


# -- all that the command line and Python show -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, dict[str, str]]]:
    """A run all of whose words attack, and the environment in which it is found."""
    folder = tmp_path_factory.mktemp("hostile")
    home = folder / "home"
    (folder / "attack.py").write_text(
        "import json, os, sys, time\n"
        f"nasty, red = {NASTY!r}, {RED!r}\n"
        "point = {'t': time.time(), 'rank': 0, 'step': 0, 'metrics': {'loss' + nasty: 1.0}}\n"
        "with open(os.environ['JOBSDK_REPORTS'], 'w') as file: print(json.dumps(point), file=file)\n"
        "sys.stdout.buffer.write((red + nasty + chr(10)).encode() + b'raw \\x9b2J \\x9d0;x\\x9c\\n')\n"
        "sys.exit(nasty)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBSDK_HOME", str(home))
        job = command(command=f"{sys.executable} attack.py", code=folder / "attack.py")
        run = MLClient().jobs.create_or_update(job, name="hostile").wait(200)
        run.display_name = run.experiment_name = run.description = NASTY
        run.tags = {"tag" + NASTY: NASTY}
        run.folder.update_facts({"display_name": NASTY, "description": NASTY, "experiment": NASTY, "tags": run.tags})
        run.folder.append_event("warning", message=NASTY)
        yield run, {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}


def on_terminal(argv: Sequence[str], environ: dict[str, str]) -> str:
    """What a command shows on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # the other side has ended
        pass
    finally:
        os.close(ours)
    process.wait(200)
    return shown.decode()


LIBRARY = "from jobsdk import MLClient; run = MLClient().jobs.get('hostile'); run.logs(); run.logs(follow=True)"
SHOWING = {
    "show": ["job", "show", "hostile"],
    "list": ["job", "list"],
    "stream": ["job", "stream", "hostile"],
    "logs": ["job", "logs", "hostile"],
    "tail": ["job", "logs", "hostile", "--tail", "3"],
    "metrics": ["job", "metrics", "hostile"],
    "csv": ["job", "metrics", "hostile", "-o", "csv"],
    "yaml": ["job", "show", "hostile", "-o", "yaml"],
    "timeline": ["job", "timeline", "hostile"],
    "wait": ["job", "wait", "hostile"],
    "no such run": ["job", "show", NASTY.replace("\0", "")],
    "no such file": ["job", "validate", NASTY.replace("\0", "")],
    "run": ["run", "printf", "%b", NASTY.replace("\0", "") + "red"],
}


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("words", [*SHOWING.values(), None], ids=[*SHOWING, "library"])
def test_all_that_is_shown(
    hostile: tuple[Run, dict[str, str]], words: list[str] | None, unbuffered: bool, tmp_path: Path
) -> None:
    argv = [sys.executable, *(["-u"] if unbuffered else []), *(["-m", "jobsdk", *words] if words else ["-c", LIBRARY])]
    shown = on_terminal(argv, hostile[1])
    found = HARMLESS.match(shown)
    assert found is not None
    assert found.end() == len(shown), shown[found.end() - 20 :][:80]
    assert len(shown.strip()) > 10
    if words in (None, SHOWING["stream"], SHOWING["logs"]):
        assert RED in shown


def test_files_and_pipes_get_what_was_written(hostile: tuple[Run, dict[str, str]]) -> None:
    run, environ = hostile
    argv = [sys.executable, "-m", "jobsdk", "job", "logs", "hostile"]
    piped = subprocess.run(argv, capture_output=True, env=environ, check=True).stdout
    written = Path(paths.rank_log(str(run.folder.path), 0, 0)).read_bytes()
    assert NASTY.encode() in written
    assert b"raw \x9b2J" in written
    assert piped.replace(b"[rank 0] ", b"") == written
