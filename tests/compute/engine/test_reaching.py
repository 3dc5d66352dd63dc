"""Whether a cluster is there, before a run is made for it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from jobsdk import ComputeError, MLClient, command
from jobsdk.compute.engine import reaching


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("head", ("head", 7)),
        ("head:6379", ("head", 6379)),
        ("10.0.0.1:6379", ("10.0.0.1", 6379)),
        ("[::1]:80", ("::1", 80)),
        ("[::1]", ("::1", 7)),
    ],
)
def test_host_and_port(place: str, found: tuple[str, int]) -> None:
    assert reaching.split(place, 7) == found


def test_who_listens_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        reaching.require("it", "127.0.0.1", server.getsockname()[1])
    with pytest.raises(ComputeError, match=r"^it cannot be reached: .+\. Fix: start it, or correct the compute$"):
        reaching.require("it", "no-such-host.invalid", 1)


@pytest.mark.parametrize(
    ("settings", "cluster"),
    [
        ({"type": "ray", "address": "127.0.0.1:9"}, "the Ray cluster at 127.0.0.1:9"),
        ({"type": "ray", "address": "ray://127.0.0.1:9"}, "the Ray cluster at ray://127.0.0.1:9"),
        ({"type": "spark", "master": "spark://127.0.0.1:9"}, "spark://127.0.0.1:9"),
        ({"type": "spark", "remote": "sc://127.0.0.1:9/;x=y"}, "sc://127.0.0.1:9/;x=y"),
    ],
)
def test_no_run_is_made_for_a_cluster_that_is_not_there(settings: dict[str, str], cluster: str, work: Path) -> None:
    pytest.importorskip("ray" if settings["type"] == "ray" else "pyspark")
    (work / "computes.yml").write_text(json.dumps({"computes": {"gone": settings}}))
    with pytest.raises(ComputeError) as caught:
        MLClient().jobs.create_or_update(command(command="true", compute="gone"))
    assert (
        str(caught.value) == f"{cluster} cannot be reached: Connection refused. Fix: start it, or correct the compute"
    )
    assert list(MLClient().jobs.list()) == []
