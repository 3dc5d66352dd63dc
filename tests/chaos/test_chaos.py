"""Every fault of the table once, at the first moment at which it can happen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.fault import Fault
from tests.chaos.faults import FAULTS
from tests.chaos.harness import run

_ROWS = [pytest.param(fault, id=fault.name.replace(" ", "-"), marks=fault.marks) for fault in FAULTS]


@pytest.mark.slow  # together; `test_exit_truth` has a fault of each kind for `make check`
@pytest.mark.parametrize("fault", _ROWS)
def test_the_card_says_what_happened(fault: Fault, tmp_path: Path) -> None:
    result = run(fault, tmp_path / "job")
    assert result.line_is_right, result.card
    assert not result.wrong, "\n".join([*result.wrong, result.card])


def test_no_two_rows_are_the_same() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    rows = {(fault.script, fault.command, fault.inject, fault.around, str(fault.plan), fault.apart,
             str(fault.distribution)) for fault in FAULTS}  # fmt: skip
    assert len(rows) == len(FAULTS) >= 40


def test_a_wrong_card_is_found_out(tmp_path: Path) -> None:
    """The comparison itself: of a row that expects another rank, nothing but that is wrong."""
    fault = next(fault for fault in FAULTS if fault.name == "exit code")
    result = run(fault._replace(rank=2, first_line="rank 2 "), tmp_path / "job")
    assert not result.line_is_right
    assert [text.split()[0] for text in result.wrong] == ["the", "rank:"]
