"""Lengths of time as jobs give them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsdk import command
from jobsdk.errors import ValidationError
from jobsdk.job.durations import Duration, seconds


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5), (0.5, 0.5), ("90", 90), ("1.5", 1.5), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("2 h", 7200),
        ("1d", 86400), ("250ms", 0.25), (" 5m ", 300), ("1m 30s", 90),
        ("", None), ("5 min", None), ("-5", None), ("m", None), ("5m5", None), (True, None), (None, None),
        (float("nan"), None), (float("inf"), None), ([5], None),
    ],
)  # fmt: skip
def test_seconds(value: object, expected: float | None) -> None:
    assert seconds(value) == expected


@given(st.one_of(st.text(alphabet="0123456789.smhd -", max_size=8), st.floats(0, 1e7), st.integers(0, 10**7)))
def test_schema_takes_what_the_field_takes(value: object) -> None:
    number, text = Duration().schema()["anyOf"]
    fits = (isinstance(value, str) and re.search(text["pattern"], value)) or (
        isinstance(value, int | float) and value >= number["minimum"]
    )
    assert bool(fits) == (seconds(value) is not None)


def test_fields_of_a_job() -> None:
    job = command(command="x", hang_timeout="5m", grace_period=2.5, max_restarts=1, restart_delay="0s", retry_on=3)
    assert job.limits is not None
    assert (job.limits.hang_timeout, job.limits.grace_period) == (300, 2.5)
    assert (job.max_restarts, job.restart_delay, job.retry_on) == (1, 0, 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [("hang_timeout", 0), ("grace_period", -1), ("grace_period", "1y"), ("rendezvous_timeout", "400d"),
     ("retry_on", [0]), ("retry_on", ["("]), ("never_retry_on", [256]), ("retry_on", {"a": 1}), ("max_restarts", -1)],
)  # fmt: skip
def test_what_cannot_be(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        command(**{"command": "x", field: value})  # type: ignore[arg-type]
