"""{pytorch, tensorflow, mpi, deepspeed} x {1, 2 nodes} on the local compute: a real collective in every cell."""

from __future__ import annotations

import pytest

from tests.compute import collectives


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("kind", collectives.KINDS)
def test_all_ranks_add_up(kind: str, nodes: int) -> None:
    collectives.check(collectives.job(kind, nodes, "local"))
