"""Lengths of time: seconds, or a number with a unit as in `5m` and `1h30m`."""

from __future__ import annotations

import math
import re
from typing import Any

from jobsdk.findings import Path, Report, show
from jobsdk.job.kinds import INVALID, Kind, Schema

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = r"[0-9]+(?:\.[0-9]+)?"
_WITH_UNITS = rf"(?:{_PART}\s*(?:ms|[smhd])\s*)+"
_LONGEST_S = 366 * 86400.0


class Duration(Kind):
    """Seconds as a number, or text such as `90s`, `5m`, `1h30m`; kept as seconds, whole where they are whole."""

    says = "a length of time: seconds, or text such as 90s, 5m, 1h30m"

    def __init__(self, minimum: float = 0.0) -> None:
        self.minimum = minimum

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        found = seconds(value)
        if found is None:
            return self.refuse(value, path, report)
        if not self.minimum <= found <= _LONGEST_S:
            fix = "write seconds, or text such as 90s, 5m, 1h30m"
            report.error(path, f"must be from {self.minimum:g} s to 366 days, got {show(value)}", fix)
            return INVALID
        return int(found) if found == int(found) else found

    def schema(self) -> Schema:
        text = {"type": "string", "pattern": rf"^\s*(?:{_PART}\s*|{_WITH_UNITS})$"}
        return {"anyOf": [{"type": "number", "minimum": self.minimum}, text]}


def whole(given: float) -> int:
    """Seconds for a service that takes no fractions: rounded down, as azure-ai-ml does it, but at least 1."""
    return max(1, int(given))


def seconds(value: Any) -> float | None:
    """How many seconds a value stands for; None if it is no length of time."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(_PART, text):
            value = float(text)
        elif re.fullmatch(_WITH_UNITS, text):
            value = sum(float(n) * _UNITS[unit] for n, unit in re.findall(rf"({_PART})\s*(ms|[smhd])", text))
        else:
            return None
    return float(value) if math.isfinite(value) else None
