"""What a node writes comes through its stdout: byte for byte, and readable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsdk.bootstrap.archive import command
from jobsdk.bootstrap.system import network
from jobsdk.bootstrap.transport import stdout_relay
from tests.bootstrap.runs import plan, wait_for


def files_of(output: bytes) -> dict[str, bytes]:
    """The files in an output in which nothing comes twice and nothing is missing."""
    found: dict[str, bytearray] = {}
    for line in output.splitlines(keepends=True):
        record = stdout_relay.parse(line)
        assert record is not None, line
        assert record.offset == len(found.setdefault(record.source, bytearray()))
        found[record.source] += record.data
    return {source: bytes(data) for source, data in found.items()}


@given(
    st.lists(st.binary() | st.text().map(str.encode) | st.just(b"x" * 9001) | st.sampled_from([b"\r", b"\n", b"\\"]))
)
def test_every_byte_survives_readers_of_text(pieces: list[bytes]) -> None:
    data, output = b"".join(pieces), b""
    for size in (len(data) // 2, len(data)):
        begin = len(files_of(output).get("rank-3", b""))
        output += stdout_relay.form("rank-3", begin, data[begin:size])
    lines = output.decode().splitlines()  # valid UTF-8, and no line ends where another reader sees one
    assert output == "".join(f"{line}\n" for line in lines).encode()
    assert all(len(line.encode()) < 16384 + 100 for line in lines)
    assert files_of(output).get("rank-3", b"") == data


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"epoch 1\n", b"rank-0:7| epoch 1\n"),
        (b"10%", b"rank-0:7+ 10%\n"),
        (b"\x1b[31mred\x1b[0m\ttab\n", b"rank-0:7| \x1b[31mred\x1b[0m\ttab\n"),
        ("größer\n".encode(), "rank-0:7| größer\n".encode()),
        ("ö\r\\n\n".encode(), "rank-0:7\\| ö\\r\\\\n\n".encode()),
        (b"a\xff\n", b"rank-0:7\\| a\\xff\n"),
        (b"\n\n", b"rank-0:7| \nrank-0:8| \n"),
    ],
)
def test_lines_are_for_people_too(data: bytes, shown: bytes) -> None:
    assert stdout_relay.form("rank-0", 7, data) == shown


@pytest.mark.parametrize("line", [b"", b"Traceback (most recent call last):\n", b"rank-3| a", b"rank-3:x| a", b"a:1|b"])
def test_other_lines_are_no_records(line: bytes) -> None:
    assert stdout_relay.parse(line) is None


def test_a_long_line_is_not_cut_within_a_character() -> None:
    output = stdout_relay.form("rank-0", 0, ("ö" * 5000 + "\n").encode())
    assert b"\\" not in output
    assert len(output.splitlines()) == 3


def start(
    folder: Path, the_plan: dict[str, Any], rank: str = "0", port: int = 0, **more: Any
) -> subprocess.Popen[bytes]:
    """A node whose output is relayed."""
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps(the_plan))
    env = {
        **os.environ, "JOBSDK_RELAY": "1", "JOBSDK_TOKEN": "ab" * 32, "JOBSDK_NODE_RANK": rank,
        "JOBSDK_RUN_DIR": str(folder), "JOBSDK_CONTROL": f"127.0.0.1 {port or network.free_ports(1)[0]}",
    }  # fmt: skip
    return subprocess.Popen(command("node", str(folder)), env=env, cwd=folder, stdout=subprocess.PIPE, **more)


ONE = {"type": "pytorch", "processes": 1, "launcher": "direct"}


def test_all_that_two_nodes_write(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        "import os, sys\n"
        "out = sys.stdout.buffer\n"
        "out.write(b'\\xff\\x00\\r\\n' * 1000 + b'\\xc3\\xb6' * 100_000 + b'\\nno end' + os.environ['RANK'].encode())\n"
    )
    the_plan = plan(f"{sys.executable} {script}; echo [$JOBSDK_RELAY] >&2", distribution=ONE)
    (port,) = network.free_ports(1)
    nodes = [start(tmp_path / str(rank), the_plan, str(rank), port) for rank in (0, 1)]
    outputs = [files_of(node.communicate(timeout=200)[0]) for node in nodes]
    for rank, files in enumerate(outputs):
        folder = tmp_path / str(rank)
        log = (folder / f"logs/node-{rank}/rank-{rank}.log").read_bytes()
        assert log.endswith(b"\nno end%d[]\n" % rank)
        assert files[f"rank-{rank}"] == log
        assert files["events"] == (folder / "events.jsonl").read_bytes()
        assert files["end"] == b"0\n"
    assert json.loads(outputs[0]["report"]) == json.loads((tmp_path / "0/report.json").read_text())


def test_the_end_comes_after_all_that_was_written_before_it(tmp_path: Path) -> None:
    node = start(tmp_path / "run", plan("seq 20000", nodes=1, distribution=ONE))
    sources = [line.partition(b":")[0] for line in node.communicate(timeout=200)[0].splitlines()]
    ended = max(index for index, source in enumerate(sources) if source == b"events")
    assert sources[ended + 1 :] == [b"end"]
    assert b"report" in sources[:ended]


def test_nobody_who_reads_holds_up_the_ranks(tmp_path: Path) -> None:
    node = start(tmp_path / "run", plan("seq 50000; touch done", nodes=1, distribution=ONE))  # more than a pipe holds
    wait_for((tmp_path / "run/report.json").exists)
    assert (tmp_path / "run/done").exists()
    assert node.poll() is None
    assert files_of(node.communicate(timeout=200)[0])["rank-0"].splitlines()[-1] == b"50000"
    assert node.returncode == 0


def test_a_signal_is_passed_on(tmp_path: Path) -> None:
    node = start(tmp_path / "run", plan("echo begun; exec sleep 600", nodes=1, distribution=ONE))
    log = tmp_path / "run/logs/node-0/rank-0.log"
    wait_for(lambda: log.exists() and log.read_text())
    node.send_signal(signal.SIGTERM)
    files = files_of(node.communicate(timeout=200)[0])
    assert node.returncode == 143
    assert json.loads(files["report"])["status"] == "Preempted"


def test_a_bootstrap_that_is_killed_leaves_its_logs_and_no_process(tmp_path: Path) -> None:
    node = start(tmp_path / "run", plan("echo begun; exec sleep 600", nodes=1, distribution=ONE))
    log = tmp_path / "run/logs/node-0/rank-0.log"
    wait_for(lambda: log.exists() and log.read_text())
    (up,) = (json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines() if "_up" in line)
    os.kill(up["pid"], signal.SIGKILL)
    files = files_of(node.communicate(timeout=200)[0])
    assert node.returncode == 128 + signal.SIGKILL
    assert files["rank-0"] == b"begun\n"
    assert files["end"] == b"137\n"


def test_what_the_bootstrap_itself_says_is_a_log(tmp_path: Path) -> None:
    node = start(tmp_path / "run", plan("true", nodes=1), rank="x")
    files = files_of(node.communicate(timeout=200)[0])
    assert node.returncode == 78
    assert b"JOBSDK_NODE_RANK must be a number" in files["bootstrap"]


def test_a_reader_that_has_gone_does_no_harm(tmp_path: Path) -> None:
    node = start(tmp_path / "run", plan("seq 50000", nodes=1, distribution=ONE))
    assert node.stdout is not None
    node.stdout.close()
    assert node.wait(timeout=200) == 0


def test_logs_in_another_nodes_folder_say_so(tmp_path: Path) -> None:
    """Where nodes share a machine, one mpirun starts all ranks, and they write into folders of their own nodes."""
    text = "mkdir -p $JOBSDK_RUN_DIR/logs/node-1; echo from afar > $JOBSDK_RUN_DIR/logs/node-1/rank-3.log; echo here"
    node = start(tmp_path / "run", plan(text, nodes=1, distribution=ONE))
    files = files_of(node.communicate(timeout=200)[0])
    assert (files["rank-0"], files["node-1.rank-3"]) == (b"here\n", b"from afar\n")
