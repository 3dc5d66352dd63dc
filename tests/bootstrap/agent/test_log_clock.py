"""When a rank has written what."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from jobsdk.bootstrap.agent.log_clock import LogClock
from jobsdk.bootstrap.control.loop import Loop
from tests.bootstrap.runs import LocalRun, plan


def lines(path: Path) -> list[tuple[float, int]]:
    return [(float(line.split()[0]), int(line.split()[1])) for line in path.read_text().splitlines()]


def clock_of(loop: Loop, folder: Path, told: list[tuple[str, float]]) -> LogClock:
    names = (str(folder / name) for name in ("log", "times", "reports"))
    return LogClock(loop, *names, lambda what, when: told.append((what, when)))


def test_the_first_line_is_told_once_and_sizes_are_noted(tmp_path: Path) -> None:
    log, times = tmp_path / "log", tmp_path / "times"
    told: list[tuple[str, float]] = []
    loop = Loop()
    clock = clock_of(loop, tmp_path, told)

    def write() -> None:
        log.write_bytes(b"one\n")
        loop.later(0.0, more)

    def more() -> None:
        if not told:
            loop.later(0.01, more)
            return
        log.write_bytes(b"one\ntwo\n")
        clock.over()
        loop.stop()

    loop.later(0.0, write)
    threading.Timer(30.0, loop.stop).start()
    loop.run()
    loop.close()
    ((what, when),) = told
    assert what == "first_output"
    assert abs(time.time() - when) < 60
    assert [size for _, size in lines(times)] == [4, 8]


def test_what_is_never_written_is_not_told(tmp_path: Path) -> None:
    loop = Loop()
    told: list[tuple[str, float]] = []
    clock = clock_of(loop, tmp_path, told)
    (tmp_path / "log").touch()
    (tmp_path / "reports").write_text('{"t": 12.5')
    clock.over()
    loop.close()
    assert (told, (tmp_path / "times").exists()) == ([], False)


def test_the_first_report_is_told_once_with_its_own_time(tmp_path: Path) -> None:
    loop = Loop()
    told: list[tuple[str, float]] = []
    clock = clock_of(loop, tmp_path, told)
    (tmp_path / "reports").write_text('{"t": 12.5, "metrics": {}}\n{"t": 13.5, "metrics": {}}\n')
    clock.over()
    clock.over()
    loop.close()
    assert told == [("metric", 12.5)]


@pytest.mark.parametrize("line", ["[1]", '{"t": "noon"}', '{"t": 1e999}', "\\xff", '{"step": 3}'])
def test_a_report_of_a_scripts_own_form_tells_nothing(tmp_path: Path, line: str) -> None:
    loop = Loop()
    told: list[tuple[str, float]] = []
    clock = clock_of(loop, tmp_path, told)
    (tmp_path / "reports").write_text(line + "\n")
    clock.over()
    loop.close()
    assert told == []


def test_every_rank_of_a_job_has_its_clock(tmp_path: Path) -> None:
    run = LocalRun(tmp_path / "run", plan("echo up; [ $RANK = 0 ] || echo more"))
    assert run.wait() == 0
    for rank, size in ((0, 3), (1, 8), (2, 8), (3, 8)):
        found = lines(run.folder / f"logs/node-{rank // 2}/times-{rank}.log")
        assert found[-1][1] == size
    assert sorted((event["node"], event["rank"]) for event in run.events("first_output")) == [
        (0, 0),
        (0, 1),
        (1, 2),
        (1, 3),
    ]
