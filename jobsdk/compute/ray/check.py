"""Whether jobs can be run on a Ray compute now: what `jobsdk compute check` says of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsdk.compute.base import Check
from jobsdk.compute.ray import errors as ray_errors
from jobsdk.compute.ray import placing as ray_placing
from jobsdk.errors import ComputeError
from jobsdk.installation import install_command

if TYPE_CHECKING:
    from jobsdk.compute.ray.jobs import Jobs

_PATIENCE_S = 60.0  # seconds for another process to connect to the cluster
_MARK = "jobsdk-ray-check:"


class Cluster(NamedTuple):
    """A cluster that is looked at, as its compute knows it."""

    address: str | None
    #: whether this process has a session with it
    has_session: bool
    #: arguments of `ray.init`
    init: Mapping[str, Any]
    #: raises ComputeError where nobody listens
    require: Callable[[], None]
    #: its job submission API, where runs go by that
    jobs: Jobs | None


def check(cluster: Cluster) -> list[Check]:
    """Ray here, the cluster with its version, and what it has."""
    try:
        import ray
    except ImportError:
        return [Check("ray", False, "is not installed here", install_command("ray"))]
    here = f"{ray.__version__}, Python {sys.version.split()[0]}"
    if cluster.address is None and not cluster.has_session:
        return [Check("Ray here", True, f"{here}; each run gets a Ray of its own on this machine")]
    try:
        found = _connected(cluster) if cluster.jobs is None else _submitting(cluster.jobs)
    except ComputeError as error:
        return [Check("Ray here", True, here), Check.failed("cluster", error)]
    same = found["version"] == ray.__version__
    version = Check("Ray", True, f"{here} here, {found['version']} on the cluster")
    if not same and cluster.jobs is None:
        fix = f"pip install ray=={found['version']}, or use the job submission API: address: http://HOST:8265"
        version = version._replace(is_well=False, fix=fix)
    nodes = found["nodes"]
    total: dict[str, float] = {}
    for node in nodes:
        for name, amount in node.items():
            if not name.startswith(("node:", "object_store_memory", "memory")):
                total[name] = total.get(name, 0) + amount
    said = f"{len(nodes)} nodes, in all {ray_placing.said(total)}"
    return [version, Check("cluster", bool(nodes), said, "" if nodes else "start nodes: ray start --address=...")]


def _submitting(jobs: Jobs) -> dict[str, Any]:
    answer = jobs.get("/api/v0/nodes?limit=10000&detail=true")
    rows = answer["data"]["result"]["result"]
    nodes = [row["resources_total"] or {} for row in rows if row["state"] == "ALIVE"]
    return {"version": jobs.version(), "nodes": nodes}


def _connected(cluster: Cluster) -> dict[str, Any]:
    """By another process: this one's session, or that it has none, stays as it is. Raises ComputeError."""
    if cluster.has_session:
        return _look()
    cluster.require()
    argv = [sys.executable, "-m", __name__, json.dumps([cluster.address, cluster.init])]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        raise ComputeError(
            f"no answer from {cluster.address} within {_PATIENCE_S:g} s. Fix: look at its head"
        ) from None
    _, is_there, text = done.stdout.partition(_MARK)
    if not is_there:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no answer"]
        raise ComputeError(ray_errors.cannot_connect(cluster.address, lines[-1]))
    found: dict[str, Any] = json.loads(text)
    return found


def _look() -> dict[str, Any]:
    import ray

    return {"version": ray.__version__, "nodes": [_resources(node) for node in ray.nodes() if node["Alive"]]}


def _resources(node: Mapping[str, Any]) -> dict[str, float]:
    return dict(node["Resources"])


def main(arguments: Sequence[str]) -> None:
    """Connect, and say what is there."""
    import ray

    address, init = json.loads(arguments[0])
    ray.init(address=address, log_to_driver=False, **init)
    print(_MARK + json.dumps(_look()))
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
