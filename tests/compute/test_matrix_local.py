"""{pytorch, tensorflow, mpi, deepspeed} x {1, 2 nodes} on the local compute: a real collective in every cell."""

from __future__ import annotations

import pytest

from tests.compute import collectives


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("kind", collectives.DISTRIBUTIONS)
def test_all_ranks_add_up(kind: str, nodes: int, request: pytest.FixtureRequest) -> None:
    if kind == "mpi":
        request.getfixturevalue("require_mpirun")
    collectives.check(collectives.job(kind, nodes, "local"))
