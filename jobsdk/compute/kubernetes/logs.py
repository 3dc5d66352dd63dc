"""The logs of pods: one asked for its new lines, and many at the same time."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.transport import stdout_relay
from jobsdk.compute.kubernetes.api import Api
from jobsdk.compute.kubernetes.objects import CONTAINER
from jobsdk.errors import ComputeError
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.logs import View, parse_ranks

_AT_ONCE = 8  # logs that are read at the same time
_ENOUGH = 16 << 20  # bytes of a log in one look


class Log(NamedTuple):
    """What was read of a container's log. `until` is the second of its last line."""

    lines: list[bytes]
    until: str | None
    is_whole: bool  # whether there was no more at that time


def nodes_of(run: RunFolder, view: View | None) -> Collection[int] | None:
    """The nodes whose logs hold the lines that a view shows, besides node 0; None: all.

    Raises ValueError for ranks that the run does not have.
    """
    if view is None:
        return ()
    plan = run.plan()
    chosen = parse_ranks(view.ranks, distributions.of(plan).world_size()) if plan else None
    if chosen is None:
        return None
    return sorted({one.node_rank for one in distributions.of(plan).processes() if one.rank in chosen})


def read_all(api: Api, asked: Sequence[tuple[str, str | None]]) -> Iterator[Log]:
    """The logs of pods, each from a second on, in the order of `asked`."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(lambda one: _read(api, *one), asked)


def _read(api: Api, pod: str, since: str | None) -> Log:
    lines: list[bytes] = []
    size, until = 0, None
    try:
        for line in api.log(pod, CONTAINER, since):
            moment, text = split(line)
            lines.append(text)
            size += len(text)
            until = moment or until
            if size > _ENOUGH and until != since:
                return Log(lines, until, False)
    except ComputeError:  # the rest will come with the next look
        return Log(lines, until, False)
    return Log(lines, until, True)


def is_end(line: bytes) -> bool:
    """Whether a line is the last record of a bootstrap, after which nothing comes."""
    record = stdout_relay.parse(line)
    return record is not None and record.source == stdout_relay.END


def split(line: bytes) -> tuple[str | None, bytes]:
    """A line with its time as (the second, the text)."""
    moment, _, text = line.partition(b" ")
    return _second(moment.decode("ascii", "replace")), text


def _second(moment: str) -> str | None:
    """The second of a time as logs have it (RFC 3339, with nanoseconds, in UTC or not); None for what is none."""
    if moment.endswith("Z"):
        return f"{moment[:19]}Z" if len(moment) >= 20 and moment[10] == "T" else None
    try:
        date = datetime.datetime.fromisoformat(f"{moment[:19]}+00:00")
        sign, hours, minutes = (zone := moment[19:].lstrip(".0123456789"))[0], int(zone[1:3]), int(zone[4:6])
    except (ValueError, IndexError):
        return None
    date -= (1 if sign == "+" else -1) * datetime.timedelta(hours=hours, minutes=minutes)
    return date.strftime("%Y-%m-%dT%H:%M:%SZ")
