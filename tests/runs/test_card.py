"""The root-cause card, from reports as they are written; and one from a run that has failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.failures import classify, tracebacks
from jobsdk.runs import card
from tests.bootstrap.endings import python, raised, said
from tests.bootstrap.runs import LocalRun, plan


def report(one: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The report of a job of which this was the first failure."""
    verdict = classify.judge(one)
    cause = {
        "host": "gpu-b", "pid": 4242, "time": 1795298489.5943, "ranks": [3], "evidence": {},
        **one, "class": verdict["class"], "message": f"rank 3 on node 1 {verdict['words']}",
        "advice": verdict["advice"],
    }  # fmt: skip
    return {
        "run": "r", "status": "Failed", "exit_code": one["exit_code"], "message": cause["message"], "cause": cause,
        "then": "the job was stopped 0.31 s later",
        "others": [{"ranks": [0, 1, 2, 4, 5, 6, 7], "what": "stopped by jobsdk"}],
        "restarts": [], "stacks": None, **more,
    }  # fmt: skip


def fits(lines: list[str]) -> bool:
    return len(lines) <= 20 and all(len(line) <= 200 and tracebacks.plain(line) == line for line in lines)


def test_a_whole_card() -> None:
    one = raised("OSError: [Errno 28] No space left on device", evidence={"disk": {"path": "/tmp", "free": 0}})
    assert card.render(report(one), "happy_fox") == [
        "run happy_fox ended as Failed: rank 3 on node 1 ran out of disk space: OSError: [Errno 28] No space left on"
        " device",
        "node 1 (gpu-b), pid 4242, at 22:01:29.594 UTC",
        "Traceback (most recent call last):",
        '  File "train.py", line 7, in <module>',
        "    main()",
        "OSError: [Errno 28] No space left on device",
        "then: the job was stopped 0.31 s later",
        "others: ranks 0-2, 4-7 stopped by jobsdk",
        "advice: /tmp has 0 bytes left: free some space there, or write elsewhere",
    ]


def test_a_long_message_goes_on_in_a_second_line() -> None:
    error = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 23456, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    lines = card.render(report(raised(error)), "merry_harbor_7dhbc6qy2p")
    assert " ".join(line.strip() for line in lines[:2]) == (
        "run merry_harbor_7dhbc6qy2p ended as Failed: rank 3 on node 1 found port 23456 in use: "
        + error.removeprefix("torch.distributed.")
    )
    assert lines[2].startswith("node 1 (gpu-b)")
    assert fits(lines)


def test_without_a_traceback_the_last_lines() -> None:
    lines = card.render(report(said(*(f"line {n}" for n in range(20)), code=3)), "r")
    assert lines[2:5] == ["its last lines:", "  line 10", "  line 11"]
    assert "line 19" in lines[12]


def test_a_traceback_that_was_logged_before_a_kill_is_not_the_reason() -> None:
    text = card.text(report(raised("ValueError: caught", code=137, signal=9)), "r")
    assert "was killed by SIGKILL" in text
    assert "its last lines:" in text


def test_the_same_error_on_other_ranks_is_one() -> None:
    one = report(raised("ValueError: 5", ranks=[1, 2, 3, 9]))
    assert card.render(one, "r")[1].endswith("; also on ranks 1-2, 9")


def test_the_users_frames_are_kept_before_a_librarys(tmp_path: Path) -> None:
    """A real one: the user's function calls a library's, which calls back, many times."""
    code = (
        "import json\n"
        "def inner(n):\n    if n == 0: raise ValueError('deep')\n"
        "    return json.dumps(object, default=lambda _: inner(n - 1))\n"
        "inner(6)\n"
    )
    (tmp_path / "train.py").write_text(code)
    with (tmp_path / "log").open("wb") as log:
        subprocess.run([sys.executable, str(tmp_path / "train.py")], stderr=log, check=False)
    one = {**raised(""), **tracebacks.last_words(str(tmp_path / "log"))}
    assert len(one["traceback"].split("\n")) > 40
    lines = card.render(report(one), "r")
    assert fits(lines)
    frames = [line for line in lines if line.startswith("  File ")]
    assert len(frames) >= 4
    assert all("train.py" in frame for frame in frames)
    assert "ValueError: deep" in lines
    assert any("frames left out" in line for line in lines)
    assert not any(line.strip().startswith("^^^") for line in lines)


def test_of_chained_exceptions_the_last_and_what_began_it(tmp_path: Path) -> None:
    body = "\n".join(f"def f{n}(): f{n - 1}()" for n in range(1, 12))
    code = f"def f0(): {{}}['a']\n{body}\ntry: f11()\nexcept KeyError as error: raise RuntimeError('second') from error"
    lines = card.render(report(python(tmp_path / "log", code)), "r")
    assert fits(lines)
    assert "RuntimeError: second" in lines
    assert "caused by: KeyError: 'a'" in lines


def test_a_group_of_exceptions_without_the_frames_of_libraries() -> None:
    words = tracebacks.last_words(str(Path(__file__).parents[1] / "bootstrap/files/exception_group.txt"))
    lines = card.render(report({**raised(""), **words}), "r")
    assert fits(lines)
    assert "    | ValueError: 2" in lines
    assert not any("asyncio" in line for line in lines)


def test_a_job_with_all_there_is_to_tell() -> None:
    """Everything at once, and more of each than there is room for."""
    traceback = "\n".join(
        ["Traceback (most recent call last):", *(f'  File "t{n}.py", line {n}, in f\n    call()' for n in range(99)),
         "ValueError: " + "x" * 999]
    )  # fmt: skip
    one = {**raised("ValueError: " + "x" * 999, ranks=list(range(0, 99, 2))), "traceback": traceback}
    restarts = [
        {"round": n, "time": 1795298000.0, "class": "exit", "message": f"rank 1 on node 0 exited with code {n}",
         "decision": f"restarted after 1.0 s ({n + 1} of 9)"}
        for n in range(9)
    ]  # fmt: skip
    others = [{"ranks": [n], "what": f"exited with code {n}"} for n in range(9)]
    stacks = [f"{n} ranks in f at train.py:{n}" for n in range(30)]
    lines = card.render(report(one, restarts=restarts, others=others, stacks=stacks), "r")
    assert fits(lines)
    assert lines[0] == "run r ended as Failed: rank 3 on node 1 exited with code 1: ValueError:"
    assert lines[1].startswith("  xxx")
    assert "... (50 in all)" in lines[2]
    assert any(line.startswith("ValueError: xxx") for line in lines)
    assert any("exited with code 8; restarted after 1.0 s (9 of 9)" in line for line in lines)
    assert any("5 more: see report.json" in line for line in lines)
    assert any("25 more" in line for line in lines)


def test_what_the_user_wrote_cannot_move_the_cursor() -> None:
    one = raised("ValueError: \x1b[2J\x07bad\x9b\u202e", host="\x1b]0;x\x07gpu")
    one["traceback"] += "\n\x1b[31mred\r"
    text = card.text(report(one), "r")
    assert tracebacks.plain(text) == text
    assert "bad" in text


@pytest.mark.parametrize(
    ("content", "first"),
    [
        ({}, "run r ended as Lost: it has no report"),
        ({"status": "Canceled", "message": "cancelled on request", "cause": None, "others": [], "restarts": [],
          "then": None, "stacks": None}, "run r ended as Canceled: cancelled on request"),
        ({"status": "Failed", "exit_code": 3, "message": "rank 0 exited with code 3"},
         "run r ended as Failed: rank 0 exited with code 3"),
        ({"status": "Lost", "message": "node 1 is lost: silent for 15 s", "then": None,
          "cause": {"class": "node_lost", "node": 1, "rank": None, "pid": None, "host": None, "exit_code": 125,
                    "signal": None, "message": "node 1 is lost: silent for 15 s", "error": None, "traceback": None,
                    "last_lines": None, "advice": None, "time": 0.0, "ranks": [], "evidence": {}}},
         "run r ended as Lost: node 1 is lost: silent for 15 s"),
    ],
    ids=["no report", "cancelled", "little", "a node"],
)  # fmt: skip
def test_reports_that_have_little_to_tell(content: dict[str, Any], first: str) -> None:
    assert card.text(content, "r").split("\n")[0] == first


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "rank 3"), ([0, 1], "ranks 0-1"), ([7, 0, 1, 2, 4, 5, 6], "ranks 0-2, 4-7"),
     (list(range(0, 40, 2)), "ranks 0, 2, 4, 6, 8, 10, 12, 14, ... (20 in all)")],
)  # fmt: skip
def test_ranks_are_folded(ranks: list[int], words: str) -> None:
    assert card.folded(ranks) == words


def test_the_card_of_a_run_has_its_advice_last(tmp_path: Path) -> None:
    (tmp_path / "fail.py").write_text("raise RuntimeError('Collective ops must be configured at program startup')")
    run = LocalRun(tmp_path / "run", plan(f"{sys.executable} {tmp_path / 'fail.py'}", nodes=1))
    assert run.wait() == 1
    lines = card.render(run.report(), "run")
    assert fits(lines)
    assert lines[0].startswith("run run ended as Failed: rank ")
    assert lines[-1].startswith("advice: create the strategy before anything else of TensorFlow")


def test_a_failure_without_advice_shows_none(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "run", plan("echo oh; exit 3", nodes=1))
    assert run.wait() == 3
    assert run.report()["cause"]["advice"] is None
    assert "advice" not in card.text(run.report(), "run")
