"""Numbers in words. Pure."""

from __future__ import annotations

from typing import Iterable, List, Optional


def bytes_text(size: Optional[int]) -> str:
    """`512 MiB`, `1.5 GiB`; None is `unlimited`."""
    if size is None:
        return "unlimited"
    value, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return "%.3g %s" % (value, unit) if value < 1000 else "%.0f %s" % (value, unit)


def seconds_text(seconds: float) -> str:
    """`0.42 ms`, `2.51 s`."""
    return "%.3g ms" % (seconds * 1000) if abs(seconds) < 1 else "%.3g s" % seconds


def duration_text(seconds: float) -> str:
    """`12.3 s`, `1:02:03` for hours, minutes, seconds."""
    if seconds < 60:
        return "%.1f s" % seconds
    minutes, rest = divmod(int(seconds), 60)
    return "%d:%02d:%02d" % (minutes // 60, minutes % 60, rest)


def ranges(numbers: Iterable[int], most: Optional[int] = None) -> str:
    """`0-2, 5` for [0, 1, 2, 5]; of many only the first `most` stretches, and how many numbers there are."""
    runs: List[List[int]] = []
    chosen = sorted(set(numbers))
    for number in chosen:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ", ".join("%d" % low if low == high else "%d-%d" % (low, high) for low, high in runs[:most])
    return shown + (", ... (%d in all)" % len(chosen) if most is not None and len(runs) > most else "")
