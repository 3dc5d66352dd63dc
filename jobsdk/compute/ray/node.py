"""The actor of Ray that holds one bundle of a job, and in it a node.

It travels to the cluster, where jobsdk is not installed: standard library, Ray, and `engine.node` alone; Python 3.8 or
later.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..engine import node as held_node

#: Ray kills the children of an actor that ends, not theirs: the bootstrap is to see for itself that the actor is gone.
_BETWEEN = ("/bin/sh", "-c", '"$@"; exit $?', "sh")

Address = Tuple[str, List[str], List[int]]  # what a node offers as node 0: host, addresses, ports


class RayNode:
    """Holds its bundle as long as it lives; `prepare` and `start` make a node of the job of it.

    `run` is the job's name, `foreign` as of `HeldNode`, `shed` the name of a folder whose place on PYTHONPATH is not
    for the ranks.
    """

    def __init__(self, run: str, foreign: Tuple[Sequence[str], Sequence[str]], shed: str) -> None:
        self._run = run
        self._foreign = foreign
        self._held: Optional[held_node.HeldNode] = None
        self._leavings: Optional[Iterator[bytes]] = None
        if shed and "PYTHONPATH" in os.environ:
            path = os.environ["PYTHONPATH"].split(os.pathsep)
            os.environ["PYTHONPATH"] = os.pathsep.join(one for one in path if os.path.basename(one) != shed)

    def gpus(self) -> List[str]:
        """The ids of the GPUs that Ray has given: numbers, or what the machine's own list has."""
        import ray

        return [str(gpu) for gpu in ray.get_gpu_ids()]

    def prepare(self, files: Mapping[str, bytes], address: str) -> Address:
        """Make the node's folder; what it offers as node 0."""
        self._held = held_node.HeldNode(self._run, files, self._foreign, _BETWEEN)
        offer = self._held.offer(address)
        return offer.host, offer.addresses, offer.ports

    def start(
        self, rank: int, first: Address, hosts: Sequence[str], variables: Dict[str, str], plan: Optional[bytes]
    ) -> None:
        """Start the node; see `HeldNode.start`."""
        assert self._held is not None
        folder = os.path.dirname(sys.executable)
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        ours = {"PATH": os.pathsep.join([folder, *(one for one in path if one != folder)])}
        # Ray blocks SIGINT in its processes, and what is started inherits that.
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        try:
            self._held.start(rank, held_node.Offer(*first), hosts, dict(ours, **variables), plan)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def lines(self, timeout: float) -> Tuple[List[bytes], Optional[int]]:
        """What the node has written since the last time, and its exit code once all has been read."""
        assert self._held is not None
        found = self._held.lines(timeout)
        return found, None if found else self._held.code

    def ask(self, request: str) -> None:
        """See `HeldNode.ask`."""
        if self._held is not None:
            self._held.ask(request)

    def left(self) -> Optional[bytes]:
        """The next piece of what the job has left on this node; None after the last."""
        assert self._held is not None
        if self._leavings is None:
            self._leavings = self._held.leavings()
        return next(self._leavings, None)

    def close(self) -> None:
        """End what still runs, and leave nothing behind."""
        if self._held is not None:
            self._held.close()


def actor_class() -> Any:
    """`RayNode` as an actor that needs no module of ours where it runs. Calls wait for output while others come."""
    import ray
    from ray import cloudpickle

    for module in (sys.modules[__name__], held_node):
        cloudpickle.register_pickle_by_value(module)
    return ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=4)(RayNode)
