"""The run's folder, rebuilt from what nodes write to their stdout."""

from __future__ import annotations

import json
import random

import pytest

from jobsdk.bootstrap.transport import stdout_relay
from jobsdk.compute.shipping.relayed import Mirror
from jobsdk.runs.folder import RunFolder


@pytest.fixture
def run() -> RunFolder:
    return RunFolder.create("mirrored")


def lines(source: str, data: bytes, offset: int = 0) -> list[bytes]:
    return stdout_relay.form(source, offset, data).splitlines(keepends=True)


def event(kind: str, **facts: object) -> bytes:
    return json.dumps({"t": 1.5, "event": kind, **facts}, separators=(",", ":")).encode() + b"\n"


def test_whatever_is_read_again_is_there_once(run: RunFolder) -> None:
    content = {f"rank-{rank}": b"line %d\r\n\xff" % rank * 5000 for rank in range(3)}
    output = [line for source, data in content.items() for line in lines(source, data)]
    chance = random.Random(7)
    done = 0
    while done < len(output):  # each time a new process, which begins somewhere before the end of what is known
        mirror = Mirror(run)
        begin, done = chance.randrange(done + 1), min(len(output), done + chance.randrange(300))
        for line in output[begin:done]:
            mirror.take(1, line)
        mirror.flush()
    for source, data in content.items():
        assert (run.logs / f"node-1/{source}.log").read_bytes() == data


def test_pieces_cut_elsewhere_fit_together(run: RunFolder) -> None:
    mirror = Mirror(run)
    for offset, data in ((0, b"abc"), (1, b"bcdef"), (3, b"d"), (0, b"abcdefgh\n")):
        for line in lines("rank-0", data, offset):
            mirror.take(0, line)
    mirror.flush()
    assert (run.logs / "node-0/rank-0.log").read_bytes() == b"abcdefgh\n"


def test_what_is_missing_is_said_in_its_place(run: RunFolder) -> None:
    mirror = Mirror(run)
    for line in (*lines("rank-0", b"first\n"), *lines("rank-0", b"later\n", 1000)):
        mirror.take(0, line)
    mirror.flush()
    found = (run.logs / "node-0/rank-0.log").read_bytes()
    assert found.startswith(b"first\n[994 bytes are missing: ")
    assert found[1000:] == b"later\n"


def test_events_of_all_nodes_come_once_each_and_the_end_is_kept_back(run: RunFolder) -> None:
    streams = {
        0: [event("started"), event("rank_ended", rank=0), event("ended", status="Completed")],
        1: [event("bootstrap_up")],
    }
    ends = []
    for size in (1, 2, 3, 3):
        mirror = Mirror(run)
        for node, events in streams.items():
            for line in lines("events", b"".join(events[:size])):
                mirror.take(node, line)
        ends.append(mirror.tell())
    assert [one["event"] for one in run.events()] == ["started", "bootstrap_up", "rank_ended"]
    assert ends == [False, False, True, True]


def test_half_an_event_waits_for_its_other_half(run: RunFolder) -> None:
    mirror = Mirror(run)
    whole = event("warning", message="x" * 9000)
    first, *others = lines("events", whole)
    mirror.take(0, first)
    mirror.tell()
    assert run.events() == []
    for line in others:
        mirror.take(0, line)
    mirror.tell()
    assert [one["event"] for one in run.events()] == ["warning"]


def test_a_node_that_comes_back_writes_on(run: RunFolder) -> None:
    for life in (0, 1):
        mirror = Mirror(run)
        for line in (*lines("events", event("bootstrap_up", life=life)), *lines("bootstrap", b"life %d\n" % life)):
            mirror.take(1, line, life)
        mirror.tell()
    assert [one["life"] for one in run.events()] == [0, 1]
    assert (run.logs / "node-1/bootstrap.log").read_text() == "life 0\n"
    assert (run.logs / "node-1/bootstrap.life-1.log").read_text() == "life 1\n"


def test_the_report_is_there_when_it_is_whole(run: RunFolder) -> None:
    mirror = Mirror(run)
    content = {"status": "Failed", "message": "x" * 9000}
    *most, last = lines("report", json.dumps(content).encode() + b"\n")
    for line in most:
        mirror.take(0, line)
    assert mirror.report() == {}
    mirror.take(0, last)
    assert mirror.report() == content


def test_other_lines_are_last_words(run: RunFolder) -> None:
    mirror = Mirror(run)
    for line in lines("bootstrap", b"bootstrap: no token\n"):
        mirror.take(0, line)
    assert mirror.last_words(0) == "bootstrap: no token"
    mirror.take(0, b"exec python3: not found")
    assert mirror.last_words(0) == "exec python3: not found"
    assert mirror.last_words(5) == ""


def test_a_log_of_another_node_goes_into_that_nodes_folder(run: RunFolder) -> None:
    mirror = Mirror(run)
    for line in (*lines("rank-0", b"here\n"), *lines("node-1.rank-3", b"from afar\n")):
        mirror.take(0, line)
    mirror.flush()
    assert (run.logs / "node-0/rank-0.log").read_bytes() == b"here\n"
    assert (run.logs / "node-1/rank-3.log").read_bytes() == b"from afar\n"
