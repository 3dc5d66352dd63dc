"""The logs of all ranks as one list of lines."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobsdk.bootstrap.spec import paths
from jobsdk.runs.folder import RunFolder
from jobsdk.views import merged as merged_log
from jobsdk.views.merged import MergedLog, label, shown
from tests.bootstrap.runs import plan


class Logs:
    """A run's folder whose ranks write as they are told."""

    def __init__(self, folder: Path) -> None:
        self.run = RunFolder(folder)
        folder.mkdir()
        (folder / "plan.json").write_text(json.dumps(plan("true")))

    def write(self, rank: int, data: bytes, time: float | None = None) -> None:
        path = Path(paths.rank_log(str(self.run.path), rank // 2, rank))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)
            size = file.tell()
        if time is not None:
            with open(paths.times(str(self.run.path), rank // 2, rank), "a") as file:
                file.write(f"{time:.3f} {size}\n")


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path / "run")


def texts(merged: MergedLog, ranks: list[int] | None = None) -> list[str]:
    return [f"{line.rank} {line.text}" for line in merged.lines(0, 10_000, ranks)]


def test_lines_come_in_the_order_of_their_times(logs: Logs) -> None:
    logs.write(1, b"a\nb\n", 1.0)
    logs.write(0, b"c\n", 2.0)
    logs.write(1, b"d\n", 3.0)
    logs.write(3, b"e\n", 2.5)
    logs.write(0, b"f\n")  # after the last time that is known
    merged = MergedLog(logs.run)
    assert merged.refresh(9.0, is_over=True) == 6
    assert texts(merged) == ["1 a", "1 b", "0 c", "3 e", "1 d", "0 f"]
    assert texts(merged, [1]) == ["1 a", "1 b", "1 d"]
    assert merged.count([0, 3]) == 3
    assert [line.number for line in merged.lines(2, 3)] == [2, 3, 4]
    assert merged.lines(6, 5) == []


def test_lines_keep_their_numbers_while_more_come(logs: Logs) -> None:
    merged = MergedLog(logs.run)
    assert merged.refresh(0.0) == 0
    logs.write(0, b"one\nhalf", 1.0)
    assert merged.refresh(1.1) == 1
    logs.write(1, b"two\n", 0.5)  # of a clock that is behind: not put in before what was shown
    logs.write(0, b" whole\n", 2.0)
    assert merged.refresh(2.1) == 3
    assert texts(merged) == ["0 one", "1 two", "0 half whole"]
    logs.write(2, b"last")
    assert merged.refresh(3.0) == 3
    assert merged.refresh(3.0, is_over=True) == 4
    assert texts(merged)[-1] == "2 last"


def test_a_restart_begins_anew(logs: Logs) -> None:
    logs.write(0, b"before\n", 1.0)
    merged = MergedLog(logs.run)
    merged.refresh(1.0)
    path = Path(paths.rank_log(str(logs.run.path), 0, 0, 1))
    path.write_bytes(b"after\n")
    merged.refresh(2.0, restart=1)
    assert texts(merged) == ["0 after"]


def test_words_are_found(logs: Logs) -> None:
    logs.write(0, b"Error: one\nfine\nsome ERROR and error\n", 1.0)
    logs.write(1, b"no\nerror", 2.0)
    merged = MergedLog(logs.run)
    merged.refresh(3.0, is_over=True)
    assert merged.find("error") == ([0, 2, 4], True)
    assert merged.find("error", most=2) == ([0, 2], False)
    assert merged.find("error", [1]) == ([1], True)
    assert merged.find("(") == merged.find("") == ([], True)


_WRITES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.sampled_from([b"x", b"yy", b"\n", b"zzz\n", b"\n\n"]), min_size=1, max_size=6).map(b"".join),
        st.none() | st.floats(0, 10),
        st.booleans(),
    ),
    max_size=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(_WRITES)
def test_every_line_is_there_once_and_in_its_ranks_order(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, bytes, float | None, bool]]
) -> None:
    logs = Logs(tmp_path_factory.mktemp("merged") / "run")
    merged, whole = MergedLog(logs.run), dict.fromkeys(range(4), b"")
    for rank, data, time, looked in writes:
        whole[rank] += data
        logs.write(rank, data, time)
        if looked:
            merged.refresh(11.0)
    total = merged.refresh(12.0, is_over=True)
    expected = {rank: data.decode().splitlines() for rank, data in whole.items()}
    assert total == sum(map(len, expected.values()))
    for rank, lines in expected.items():
        assert [line.text for line in merged.lines(0, 1000, [rank])] == lines
    everything = merged.lines(0, 10_000)
    assert [line.number for line in everything] == list(range(total))
    for first in range(0, total, 7):
        assert merged.lines(first, 5) == everything[first : first + 5]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"10%\r20%", "20%"),
        (b"windows\r", "windows"),
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"\xff<b>", "\N{REPLACEMENT CHARACTER}<b>"),
        (b"a\tb", "a\tb"),
    ],
)
def test_what_is_shown_of_a_line(raw: bytes, text: str) -> None:
    assert shown(raw) == text


def test_a_very_long_line_is_cut() -> None:
    assert shown(b"x" * 20_000).endswith("… (20000 characters)")


def test_a_line_of_many_megabytes_is_read_once_and_never_held(logs: Logs) -> None:
    merged = MergedLog(logs.run)
    for _ in range(40):
        logs.write(0, b"x" * (1 << 20))
        assert merged.refresh(1.0) == 0
    logs.write(0, b"\nafter\n")
    logs.write(1, b"10%\r" * (1 << 18) + b"100%")
    tracemalloc.start()
    assert merged.refresh(1.0, is_over=True) == 3
    long, after, bar = (line.text for line in merged.lines(0, 10))
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert long.startswith("xxx")
    assert long.endswith("(41943041 bytes)")
    assert (after, bar) == ("after", "100%")
    assert merged.find("xx") == ([0], True)


def test_large_logs_are_read_part_by_part_and_shown_in_order(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_log, "_PATIENCE_S", -1.0)  # each refresh takes in one part
    monkeypatch.setattr(merged_log, "_PIECE", 8)
    for number in range(4):
        logs.write(number % 2, b"%d\n" % number * 8, float(number))
    merged = MergedLog(logs.run)
    totals = [merged.refresh(9.0, is_over=True)]
    while merged.is_behind:
        totals.append(merged.refresh(9.0, is_over=True))
    assert set(totals) == {0, 32}
    assert [line.text for line in merged.lines(0, 100)] == [str(number) for number in range(4) for _ in range(8)]


def test_a_run_that_has_no_plan_yet(tmp_path: Path) -> None:
    (tmp_path / "early").mkdir()
    merged = MergedLog(RunFolder(tmp_path / "early"))
    assert merged.refresh(0.0) == 0
    (tmp_path / "early/plan.json").write_text(json.dumps(plan("true")))
    logs = Logs.__new__(Logs)
    logs.run = RunFolder(tmp_path / "early")
    logs.write(0, b"there\n")
    assert merged.refresh(1.0) == 1


def test_what_a_launcher_says_is_among_the_lines(logs: Logs) -> None:
    content = plan("true")
    content["distribution"]["launcher"] = "openmpi"
    logs.run.write_json("plan.json", content)
    logs.write(0, b"up\n", 1.0)
    Path(paths.launcher_log(str(logs.run.path), 1)).parent.mkdir(parents=True, exist_ok=True)
    Path(paths.launcher_log(str(logs.run.path), 1)).write_text("mpirun noticed\n")
    merged = MergedLog(logs.run)
    merged.refresh(2.0, is_over=True)
    assert [(label(line.rank), line.text) for line in merged.lines(0, 9)] == [("0", "up"), ("node 1", "mpirun noticed")]
    assert merged.count([0]) == 1


def test_bars_that_have_no_end_yet_are_told_apart(logs: Logs) -> None:
    merged = MergedLog(logs.run)
    logs.write(1, b"done\n 10%|#\r 20%|##")
    merged.refresh(1.0)
    logs.write(0, b" 5%|")
    merged.refresh(2.0)
    assert merged.unended() == [(1, " 20%|##"), (0, " 5%|")]
    logs.write(1, b"\r 30%|###")
    merged.refresh(3.0)
    assert merged.unended() == [(0, " 5%|"), (1, " 30%|###")]


@pytest.mark.parametrize("how", ["shorter", "gone"])
def test_logs_that_are_cut_or_taken_away_do_no_harm(logs: Logs, how: str) -> None:
    logs.write(0, b"one\ntwo\n", 1.0)
    logs.write(1, b"three\n", 2.0)
    merged = MergedLog(logs.run)
    merged.refresh(3.0)
    path = Path(paths.rank_log(str(logs.run.path), 0, 0))
    path.write_bytes(b"new\n") if how == "shorter" else path.unlink()
    assert merged.refresh(4.0) == 3
    assert "1 three" in texts(merged)
    assert merged.find("three")[1]
