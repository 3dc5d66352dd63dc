"""{pytorch, tensorflow, mpi, deepspeed} x {1, 2 pods without ssh}: a real collective in every cell."""

from __future__ import annotations

import os

import pytest

from tests.compute import collectives
from tests.compute.kubernetes.cluster import Cluster
from tests.compute.kubernetes.conftest import PATH, PYTHON, Configure
from tests.extensions import compiled

#: The image has no compiler. What was compiled here is taken as up to date where the compiler's headers are.
_HEADERS = [{"mount": path, "host_path": path, "read_only": True} for path in ("/usr/include", "/usr/lib/gcc")]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("kind", collectives.KINDS)
def test_all_ranks_add_up(kind: str, nodes: int, cluster: Cluster, configure: Configure) -> None:
    if kind == "deepspeed":
        given = {name: os.environ[name] for name in ("HOME", "TORCH_EXTENSIONS_DIR") if name in os.environ}
        configure(
            cluster,
            volumes=[*PYTHON, *_HEADERS, {"mount": compiled(), "host_path": compiled()}],
            env={"PATH": PATH, **given},
        )
    collectives.check(collectives.job(kind, nodes, "cluster"))
