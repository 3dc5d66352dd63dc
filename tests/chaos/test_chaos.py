"""Every fault of the table once, at the first moment at which it can happen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.fault import Fault
from tests.chaos.faults import FAULTS
from tests.chaos.harness import Result, run

_results: dict[str, Result] = {}


@pytest.fixture
def result_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Fault], Result]:
    """What came of a row; each runs once."""

    def result(fault: Fault) -> Result:
        if fault.name not in _results:
            _results[fault.name] = run(fault, tmp_path_factory.mktemp("chaos") / "job")
        return _results[fault.name]

    return result


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name.replace(" ", "-") for fault in FAULTS])
def test_the_card_says_what_happened(fault: Fault, result_of: Callable[[Fault], Result]) -> None:
    result = result_of(fault)
    assert not result.wrong, "\n".join([*result.wrong, result.card])


def test_no_two_rows_are_the_same() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    rows = {(fault.script, fault.command, fault.inject, fault.around, str(fault.plan), fault.apart,
             str(fault.distribution)) for fault in FAULTS}  # fmt: skip
    assert len(rows) == len(FAULTS) >= 40


def test_nearly_all_first_lines_name_the_cause(result_of: Callable[[Fault], Result]) -> None:
    right = [fault for fault in FAULTS if result_of(fault).line_is_right]
    assert len(right) >= 0.95 * len(FAULTS)


def test_a_wrong_card_is_found_out(tmp_path: Path) -> None:
    """The comparison itself: of a row that expects another rank, nothing but that is wrong."""
    fault = next(fault for fault in FAULTS if fault.name == "exit code")
    result = run(fault._replace(rank=2, first_line="rank 2 "), tmp_path / "job")
    assert not result.line_is_right
    assert [text.split()[0] for text in result.wrong] == ["the", "rank:"]
