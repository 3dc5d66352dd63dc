"""Functions on each kind of compute: what comes back is the same everywhere."""

from __future__ import annotations

import io
from typing import Any

import pytest

from jobsdk import MLClient, PyTorchDistribution, function
from jobsdk.client.outcome import RemoteTraceback
from jobsdk.client.run import Run
from tests.functions.project import work
from tests.functions.project.models import Point
from tests.functions.project.models.shapes import WrongShape

_TIMEOUT = 200.0


def check(compute: str, client: MLClient | None = None, nodes: int = 2, **options: Any) -> None:
    """Values and reports of all ranks, and the exception of the last one, on nodes with two ranks each."""
    jobs = (client or MLClient()).jobs
    fields = {"distribution": PyTorchDistribution(process_count_per_instance=2), "instance_count": nodes, **options}
    run = jobs.create_or_update(function(work.share, 5, compute=compute, **fields))
    assert run.result(_TIMEOUT) == (0, Point(5)), run.report
    assert run.result(all_ranks=True) == [(rank, Point(5 + rank)) for rank in range(2 * nodes)]
    assert logged(run) == ""
    assert {point.rank: point.value for point in run.metrics["given"]} == {rank: 5 + rank for rank in range(2 * nodes)}
    failed = jobs.create_or_update(function(work.last_fails, compute=compute, **fields))
    error = failed.exception(_TIMEOUT)
    assert isinstance(error, WrongShape), failed.report
    assert isinstance(error.__cause__, RemoteTraceback)
    assert error.__cause__.rank == 2 * nodes - 1
    assert 'raise WrongShape("of the last rank")' in str(error.__cause__)
    with pytest.raises(WrongShape, match="of the last rank"):
        failed.result()


def logged(run: Run) -> str:
    """What the ranks have written."""
    out = io.BytesIO()
    run.logs(out=out)
    return out.getvalue().decode()
