from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.ray.cluster import HEAD, RayCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A cluster of a head and two nodes, and this process's environment as that of a client of it."""
    import ray

    one = RayCluster(tmp_path_factory.mktemp("ray"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        for name, value in one.environment.items():
            patch.setenv(name, value)
        try:
            yield one
        finally:
            ray.shutdown()
            one.close()


@pytest.fixture
def computes(cluster: RayCluster, work: Path) -> None:
    """The cluster as a compute in each of the ways there are."""
    init = {"_node_ip_address": HEAD}
    entries = {
        "session": {"type": "ray"},
        "driver": {"type": "ray", "address": cluster.address, "init": init},
        "own": {"type": "ray", "init": {**init, "num_gpus": 2, "object_store_memory": 10**8}},
        "jobs": {"type": "ray", "address": cluster.api},
        "gone": {"type": "ray", "address": f"http://{HEAD}:9"},
    }
    (work / "computes.yml").write_text(json.dumps({"computes": entries}))
