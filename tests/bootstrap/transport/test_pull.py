"""The verb `pull` by itself: what it sends for what is said to be there already."""

from __future__ import annotations

import json
import os
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.archive import command
from jobsdk.bootstrap.spec import pidfile
from jobsdk.bootstrap.transport import pull


@pytest.fixture
def away(tmp_path: Path) -> Path:
    (tmp_path / "logs/node-0").mkdir(parents=True)
    (tmp_path / "logs/node-0/rank-0.log").write_bytes(b"0123456789")
    return tmp_path


def ask(folder: Path, **have: list[int]) -> tuple[dict[str, tuple[int, bytes]], dict[str, Any]]:
    """What is sent of each file: (from where, bytes); and the last line."""
    given = json.dumps({name.replace("__", "/"): part for name, part in have.items()})
    done = subprocess.run(command("pull", str(folder)), input=given.encode(), capture_output=True, check=True)
    noise, _, rest = done.stdout.partition(pull.MARK)
    assert noise == b""
    sent: dict[str, tuple[int, bytes]] = {}
    while True:
        line, _, rest = rest.partition(b"\n")
        head = json.loads(line)
        if head.get("end"):
            assert rest == b""
            return sent, head
        at, before = sent.get(head["path"], (head["at"], b""))
        assert head["at"] == at + len(before)
        sent[head["path"]], rest = (at, before + rest[: head["size"]]), rest[head["size"] :]


_LOG = "logs/node-0/rank-0.log"


def have_of(folder: Path, data: bytes) -> dict[str, Any]:
    return {_LOG: [len(data), zlib.crc32(data[-pull.TAIL :])]}


@pytest.mark.parametrize(
    ("here", "sent"),
    [
        (b"", (0, b"0123456789")),
        (b"0123", (4, b"456789")),
        (b"0123456789", None),
        (b"01x3", (0, b"0123456789")),
        (b"0123456789, and more", (0, b"0123456789")),
    ],
)
def test_only_what_is_missing_is_sent(away: Path, here: bytes, sent: Any) -> None:
    assert ask(away, **have_of(away, here))[0].get(_LOG) == sent


def test_large_files_come_in_pieces(away: Path) -> None:
    content = os.urandom(3 * (1 << 20) + 7)
    (away / _LOG).write_bytes(content)
    assert ask(away)[0][_LOG] == (0, content)
    assert ask(away, **have_of(away, content[:2000]))[0][_LOG] == (2000, content[2000:])


def test_events_come_last_and_in_whole_lines(away: Path) -> None:
    (away / "events.jsonl").write_bytes(b'{"a":1}\n{"b":2}\n{"c"')
    (away / "report.json").write_bytes(b"{}")
    sent, _ = ask(away)
    assert list(sent)[-1] == pull.EVENTS
    assert sent[pull.EVENTS] == (0, b'{"a":1}\n{"b":2}\n')
    sent, _ = ask(away, **{pull.EVENTS: [8, 0], pull.REPORT: [2, 0]})
    assert sent[pull.EVENTS] == (8, b'{"b":2}\n')
    assert pull.REPORT not in sent


def test_links_and_half_written_files_stay(away: Path) -> None:
    (away / "logs/link").symlink_to("/etc/passwd")
    (away / "logs/x.tmp").write_text("half")
    (away / "secrets.json").write_text("no")
    (away / "mlruns/0/r/artifacts").mkdir(parents=True)
    (away / "mlruns/0/r/artifacts/model").write_text("large")
    (away / "mlruns/0/r/meta.yaml").write_text("m")
    assert set(ask(away)[0]) == {_LOG, "mlruns/0/r/meta.yaml"}


def test_an_empty_log_is_there(away: Path) -> None:
    (away / _LOG).write_bytes(b"")
    assert ask(away)[0][_LOG] == (0, b"")


def test_it_says_which_bootstraps_live(away: Path) -> None:
    process = subprocess.Popen(["sleep", "600"])
    pidfile.write(str(away), 0, process.pid)
    pidfile.write(str(away), 1, process.pid)
    other = json.loads((away / "bootstrap-1.json").read_text())
    (away / "bootstrap-1.json").write_text(json.dumps({**other, "start": other["start"] - 1}))
    assert ask(away)[1]["living"] == [0], "a later process of the same number is not the bootstrap"
    process.kill()
    process.wait()
    pidfile.write(str(away), 2, process.pid)
    assert ask(away)[1]["living"] == []
