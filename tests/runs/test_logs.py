from __future__ import annotations

import hashlib
import io
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jobsdk.runs.folder import RunFolder
from jobsdk.runs.logs import Follower, Shown, View, parse_ranks
from tests.bootstrap.runs import wait_for


@pytest.fixture
def run() -> RunFolder:
    return make_run(world=3)


def make_run(world: int, launcher: str = "direct") -> RunFolder:
    folder = RunFolder.create("run")
    distribution = {"type": "pytorch", "processes": world, "launcher": launcher}
    folder.write_json("plan.json", {"run": "run", "nodes": 1, "distribution": distribution})
    folder.write_json("run.json", {"submitter_pid": os.getpid(), "created": 0})
    folder.append_event("submitted")
    (folder.logs / "node-0").mkdir()
    return folder


def log(run: RunFolder, rank: int) -> Path:
    return run.logs / "node-0" / f"rank-{rank}.log"


def end(run: RunFolder) -> None:
    run.append_event("ended", status="Completed", exit_code=0, message="done")


def shown(run: RunFolder, **options: object) -> bytes:
    out = io.BytesIO()
    Follower(run, out, View(**options)).drain()  # type: ignore[arg-type]
    return out.getvalue()


def test_lines_carry_their_rank_and_an_unended_last_line_is_ended(run: RunFolder) -> None:
    log(run, 0).write_bytes(b"one\ntwo\n")
    log(run, 2).write_bytes(b"\xff\xfe\n\nlast")
    assert shown(run) == b"[rank 0] one\n[rank 0] two\n[rank 2] \xff\xfe\n[rank 2] \n[rank 2] last\n"


def test_prefixes_are_of_equal_width() -> None:
    run = make_run(world=11, launcher="mpirun")
    log(run, 3).write_bytes(b"a\n")
    log(run, 10).write_bytes(b"b\n")
    (run.logs / "node-0" / "launcher.log").write_bytes(b"c\n")
    assert shown(run) == b"[node 0]  c\n[rank 3]  a\n[rank 10] b\n"
    assert shown(run, ranks="last") == b"[rank 10] b\n"


def test_carriage_returns_are_kept_in_files_and_settled_on_a_terminal(run: RunFolder) -> None:
    log(run, 0).write_bytes(b"\r 10%\r 100%\r\nplain\r\n\r        \rdone\n")
    assert shown(run) == b"[rank 0] \r 10%\r 100%\r\n[rank 0] plain\r\n[rank 0] \r        \rdone\n"
    settled = b"[rank 0]  100%\n[rank 0] plain\n[rank 0] done\n"
    assert shown(run, terminal=True) == shown(run, settled=True) == settled


@pytest.mark.parametrize(
    ("content", "tail", "expected"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc\n"),
        (b"a\nb\n", 9, b"a\nb\n"),
        (b"a\nb\n", 0, b""),
        (b"\n\n\n", 2, b"\n\n"),
        (b"", 2, b""),
        (b"first\n" + b"x" * (3 << 20) + b"\nlast\n", 2, b"x" * (3 << 20) + b"\nlast\n"),
    ],
)
def test_tail(run: RunFolder, content: bytes, tail: int, expected: bytes) -> None:
    log(run, 1).write_bytes(content)
    assert shown(run, tail=tail) == b"".join(b"[rank 1] " + line for line in expected.splitlines(keepends=True))


def test_a_line_longer_than_all_buffers_is_one_line(run: RunFolder) -> None:
    out = io.BytesIO()
    follower = Follower(run, out)
    giant = b"y" * (5 << 20)
    with log(run, 0).open("ab", buffering=0) as file:
        file.write(giant)
        follower._round()
        log(run, 1).write_bytes(b"other\n")
        for _ in range(8):
            follower._round()
        assert out.getvalue() == b"[rank 1] other\n"
        file.write(b"z\nnext\nrest")
        follower.drain()
    expected = b"[rank 0] " + giant + b"z\n[rank 0] next\n[rank 0] rest\n"
    assert out.getvalue() == b"[rank 1] other\n" + expected


def test_half_lines_wait_for_their_other_half_until_the_rank_ends(run: RunFolder) -> None:
    out = io.BytesIO()
    follower = Follower(run, out)
    with log(run, 0).open("ab", buffering=0) as file:
        file.write(b"half")
        follower._round()
        follower._round()
        assert out.getvalue() == b""
        file.write(b" and half\ntail")
        follower._round()
        assert out.getvalue() == b"[rank 0] half and half\n"
    run.append_event("rank_ended", node=0, rank=0, exit_code=0)
    follower._take_events()
    follower._round()
    assert out.getvalue() == b"[rank 0] half and half\n[rank 0] tail\n"


def test_a_progress_bar_is_redrawn_below_the_lines_on_a_terminal(run: RunFolder) -> None:
    out = io.BytesIO()
    follower = Follower(run, out, View(terminal=True))
    with log(run, 0).open("ab", buffering=0) as file:
        file.write(b"\r 10%")
        follower._round()
        follower._draw()
        assert out.getvalue() == b"[rank 0]  10%"
        log(run, 1).write_bytes(b"hello\n")
        follower._round()
        assert out.getvalue() == b"[rank 0]  10%\r" + b" " * 13 + b"\r[rank 1] hello\n"
        file.write(b"\r 20%\n")
    follower.drain()
    assert out.getvalue().endswith(b"hello\n[rank 0]  20%\n")


def test_a_line_says_how_the_ranks_are_on_a_terminal(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    follower = Follower(run, out, View(terminal=True, color=True))
    follower._status_from = 0.0  # as after the first second of following
    run.append_event("submitted", by=1)
    run.append_event("started", restart=0)
    for rank in range(2):
        run.append_event("rank_started", node=0, rank=rank, pid=1)
    run.append_event("rank_ended", node=0, rank=0, exit_code=0, signal=None)
    follower._take_events()
    with log(run, 1).open("ab", buffering=0) as file:
        file.write(b"\r 10%")
        follower._round()
        follower._draw()
    drawn = re.fullmatch(rb"\x1b\[2m(.*) \xc2\xb7 \d+ s\x1b\[0m  \x1b\[32m\[rank 1\] \x1b\[0m 10%", out.getvalue())
    assert drawn is not None, out.getvalue()
    assert re.fullmatch(rb"(\d+ waiting, )?1 running, 1 completed", drawn[1])
    follower.drain()
    assert b"running" not in out.getvalue().rpartition(b" \r")[2]


def test_what_is_said_and_an_interrupt_find_the_terminal_line_empty(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.BytesIO()
    follower = Follower(run, out, View(terminal=True, say=lambda text: out.write(f"{text}\n".encode())))
    monkeypatch.setattr(time, "sleep", lambda _: signal.raise_signal(signal.SIGINT))
    with log(run, 0).open("ab", buffering=0) as file:
        file.write("\r 10% \x1b]0;title\x07\u202e日本".encode())
    follower._round()
    follower._draw()
    assert out.getvalue() == "[rank 0]  10% 日本".encode()
    run.append_event("warning", message="low on disk")
    follower._take_events()
    assert out.getvalue().endswith(f"日本\r{' ' * 18}\rlow on disk\n".encode())
    follower._drawn_at = 0.0
    with pytest.raises(KeyboardInterrupt):
        follower.follow()
    assert out.getvalue().endswith(f"[rank 0]  10% 日本\r{' ' * 18}\r".encode())


def test_colors_are_around_the_prefix_only(run: RunFolder) -> None:
    log(run, 1).write_bytes(b"text\n")
    assert shown(run, color=True) == b"\x1b[32m[rank 1]\x1b[0m text\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("0,3-5", [0, 3, 4, 5]),
        ("last", [7]),
        ("6-last", [6, 7]),
        (" 1 , 1", [1]),
        (2, [2]),
        ([4, 1], [1, 4]),
    ],
)
def test_ranks(text: str | int | list[int] | None, expected: list[int] | None) -> None:
    assert parse_ranks(text, 8) == expected


@pytest.mark.parametrize("text", ["", "a", "1-2-3", "8", "0-999999999", "-1", "3-1", "1,,2", "٣", -1, [9]])
def test_wrong_ranks(text: str | int | list[int]) -> None:
    with pytest.raises(ValueError, match="rank"):
        parse_ranks(text, 8)


_WRITER = """
import os, random, sys
rank, lines, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
chance = random.Random(rank)
alphabet = [b"epoch", b"\\r 10%\\r 20%", b"\\xff\\xfe\\x80", b"", b" ", b"loss=0.1", "\\u00e4\\u6f22".encode(), b"\\r"]
text = b"".join(
    b"%d:%d %s\\n" % (rank, number, chance.choice(alphabet) * chance.randrange(4)) for number in range(lines)
)[:-1]
file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
place = 0
while place < len(text):  # in pieces that know nothing of lines
    place += os.write(file, text[place : place + chance.randrange(1, 30000)])
"""


def test_a_million_lines_from_8_writers_none_lost_none_torn() -> None:
    run, lines = make_run(world=8), 125_000
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(rank), str(lines), str(log(run, rank))])
        for rank in range(8)
    ]

    def finish() -> None:
        for rank, writer in enumerate(writers):
            run.append_event("rank_ended", node=0, rank=rank, exit_code=writer.wait())
        end(run)

    out = io.BytesIO()
    waiter = threading.Thread(target=finish)
    waiter.start()
    state = Follower(run, out).follow()
    waiter.join()
    assert state.status == "Completed"
    found: dict[bytes, list[bytes]] = {}
    for line in out.getvalue().split(b"\n")[:-1]:
        prefix, text = line[:8], line[9:]
        found.setdefault(prefix, []).append(text)
    assert sorted(found) == [b"[rank %d]" % rank for rank in range(8)]
    for rank in range(8):
        texts = found[b"[rank %d]" % rank]
        assert len(texts) == lines
        written = hashlib.sha256(log(run, rank).read_bytes() + b"\n").hexdigest()
        assert hashlib.sha256(b"".join(text + b"\n" for text in texts)).hexdigest() == written


def test_following_shows_lines_while_the_run_goes_on(run: RunFolder) -> None:
    class Out(io.BytesIO):
        seen = threading.Event()

        def write(self, data: bytes, /) -> int:  # type: ignore[override]
            if b"early" in data:
                self.seen.set()
            return super().write(data)

    out = Out()
    said: list[str] = []
    follower = Follower(run, out, View(say=said.append))
    thread = threading.Thread(target=follower.follow)
    thread.start()
    log(run, 0).write_bytes(b"early\n")
    assert out.seen.wait(200)
    run.append_event("warning", message="mind the gap")
    with log(run, 0).open("ab") as file:
        file.write(b"late")
    end(run)
    thread.join(200)
    assert out.getvalue() == b"[rank 0] early\n[rank 0] late\n"
    assert said == ["mind the gap"]


@pytest.mark.parametrize("tail", [None, 2])
def test_who_is_interrupted_goes_on_where_it_stopped(run: RunFolder, tail: int | None) -> None:
    class Interrupted(io.BytesIO):
        def flush(self) -> None:
            if b"two" in self.getvalue():
                raise KeyboardInterrupt

    said: list[str] = []
    view = View("0", tail, say=said.append, shown=Shown())
    run.append_event("warning", message="mind the gap")
    log(run, 0).write_bytes(b"one\ntwo\nthr")
    log(run, 1).write_bytes(b"of another rank\n")
    first, then = Interrupted(), io.BytesIO()
    with pytest.raises(KeyboardInterrupt):
        Follower(run, first, view).follow()
    with log(run, 0).open("ab") as file:
        file.write(b"ee\nfour\n")
    run.append_event("warning", message="it is wide")
    end(run)
    Follower(run, then, view).follow()
    assert (
        first.getvalue() + then.getvalue()
        == {
            None: b"[rank 0] one\n[rank 0] two\n[rank 0] three\n[rank 0] four\n",
            2: b"[rank 0] two\n[rank 0] three\n[rank 0] four\n",
        }[tail]
    )
    assert said == ["mind the gap", "it is wide"]


def test_following_says_why_a_run_waits_once_for_each_reason(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobsdk.runs.logs._QUEUE_S", 0.0)
    said: list[str] = []
    follower = Follower(run, io.BytesIO(), View(say=said.append))
    thread = threading.Thread(target=follower.follow)
    thread.start()
    for count, message in (1, "no nodes"), (2, "others are first"):
        run.append_event("queued", message=message)
        wait_for(lambda: len(said) == count)  # noqa: B023 - it is called at once
    run.append_event("queued", message="no nodes")
    end(run)
    thread.join(200)
    assert said == ["queued: no nodes", "queued: others are first"]


def test_a_refusal_is_said_at_once(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobsdk.runs.logs._QUEUE_S", 1e6)
    said: list[str] = []
    run.append_event("queued", message="no nodes")
    thread = threading.Thread(target=Follower(run, io.BytesIO(), View(say=said.append)).follow)
    thread.start()
    run.append_event("queued", message="over the quota", refused=True)
    wait_for(lambda: said)
    run.append_event("queued", message="no nodes")
    end(run)
    thread.join(200)
    assert said == ["queued: over the quota"]


def test_a_wait_that_was_short_is_not_said(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobsdk.runs.logs._QUEUE_S", 0.0)
    said: list[str] = []
    run.append_event("queued", message="no nodes", refused=True)
    run.append_event("started")
    end(run)
    Follower(run, io.BytesIO(), View(say=said.append)).follow()
    assert said == []


def test_random_pieces_are_put_together(run: RunFolder) -> None:
    chance = random.Random(7)
    out = io.BytesIO()
    follower = Follower(run, out)
    text = b"".join(bytes(chance.choices(b"ab\r\n", k=1)) for _ in range(4000)) + b"x"
    with log(run, 0).open("ab", buffering=0) as file:
        place = 0
        while place < len(text):
            size = chance.randrange(1, 9)
            file.write(text[place : place + size])
            place += size
            follower._round()
            assert out.getvalue().endswith((b"\n", b"")[not out.getvalue()])
    follower.drain()
    assert out.getvalue() == b"".join(b"[rank 0] " + line + b"\n" for line in text.split(b"\n"))
