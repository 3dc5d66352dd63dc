"""The logs of all ranks as one list of lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobsdk.bootstrap import layout
from jobsdk.runs import RunFolder
from jobsdk.views.merged import MergedLog, shown
from tests.bootstrap.runs import plan


class Logs:
    """A run's folder whose ranks write as they are told."""

    def __init__(self, folder: Path) -> None:
        self.run = RunFolder(folder)
        folder.mkdir()
        (folder / "plan.json").write_text(json.dumps(plan("true")))

    def write(self, rank: int, data: bytes, time: float | None = None) -> None:
        path = Path(layout.rank_log(str(self.run.path), rank // 2, rank))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)
            size = file.tell()
        if time is not None:
            with open(layout.times(str(self.run.path), rank // 2, rank), "a") as file:
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
    path = Path(layout.rank_log(str(logs.run.path), 0, 0, 1))
    path.write_bytes(b"after\n")
    merged.refresh(2.0, restart=1)
    assert texts(merged) == ["0 after"]


def test_words_are_found(logs: Logs) -> None:
    logs.write(0, b"Error: one\nfine\nsome ERROR and error\n", 1.0)
    logs.write(1, b"no\nerror", 2.0)
    merged = MergedLog(logs.run)
    merged.refresh(3.0, is_over=True)
    assert merged.find("error") == [0, 2, 4]
    assert merged.find("error", most=2) == [0, 2]
    assert merged.find("error", [1]) == [1]
    assert merged.find("(") == merged.find("") == []


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
