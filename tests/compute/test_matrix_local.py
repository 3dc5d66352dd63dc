"""The local compute: a real collective of each framework, and one of sockets as on the engines."""

from __future__ import annotations

import pytest

from tests.compute import collectives


@pytest.mark.parametrize("kind", ["sockets", *collectives.KINDS])
def test_all_ranks_add_up(kind: str) -> None:
    collectives.check(collectives.job(kind, 2, "local"))


def test_all_ranks_of_one_node_add_up() -> None:
    collectives.check(collectives.job("sockets", 1, "local"))
