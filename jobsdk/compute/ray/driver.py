"""Drives a job through Ray: a placement group, an actor in each bundle, nodes of the job in them.

It travels to the cluster, where jobsdk is not installed: standard library, Ray, `ends`, and its neighbours `node`
and `placing` alone; Python 3.8 or later. Ray must have been initialized.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Protocol

import ray
from ray import exceptions
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ..ends import EngineEnd, EngineEnded
from . import node as ray_node
from . import placing as ray_placing

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan

NAMESPACE = "jobsdk"  # of the actor of node 0, where it has a name
_LOOK_S = 1  # whole seconds, as Ray counts them, between two looks at whether the group has its place
_READ_S = 1.0  # seconds that a node waits for something to say before it says that there is nothing
_PATIENCE_S = 30.0  # seconds that other nodes have, beside heartbeat and grace, when one is lost; that a call may take
_RESTART = b'"event":"restart"'
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b: .")  # the last line of a traceback


class Order(NamedTuple):
    """What is to be driven, as the native spec has it.

    `per_rank` says that each bundle is for one rank: then only Ray decides which nodes the job has.
    """

    run: str
    bundle: Dict[str, float]
    size: int
    strategy: str
    per_rank: bool = False
    labels: Optional[List[Dict[str, str]]] = None  # of the nodes, for each bundle
    runtime_env: Optional[Dict[str, Any]] = None  # of the actors
    patience: Optional[float] = None  # seconds that the group may wait for its place
    grows: bool = False  # whether the cluster may get what it does not have yet
    foreign: Any = ((), ())  # see `HeldNode`
    shed: str = ""  # see `RayNode`
    name: Optional[str] = None  # of the actor of node 0

    @property
    def env_vars(self) -> Mapping[str, str]:
        return (self.runtime_env or {}).get("env_vars") or {}


class Client(Protocol):
    """Who the job is driven for."""

    def take(self, rank: int, lines: Iterable[bytes]) -> None:
        """What a node has written."""

    def tell(self, event: str, **facts: Any) -> None:
        """An event that only Ray knows of."""

    def planned(self, plan: Plan) -> None:
        """The plan as the placement has made it."""

    def asked(self) -> List[str]:
        """New requests for node 0, `cancel` among them. To be called often."""
        ...

    def leave(self, rank: int, chunks: Iterator[bytes]) -> None:
        """What the job has left on a node, as pieces of a tar file."""


def drive(order: Order, files: Mapping[str, bytes], client: Client) -> Optional[int]:
    """Run the job to its end; the exit code of node 0. Raises EngineEnded, and RayError where Ray itself fails."""
    group = placement_group(
        [dict(order.bundle)] * order.size, strategy=order.strategy, name=order.run,
        **({"bundle_label_selector": order.labels} if order.labels else {}),
    )  # fmt: skip
    try:
        _await_place(order, group, client)
        nodes = Nodes(order, json.loads(files["plan.json"]), group)
        try:
            nodes.place(client)
            nodes.start(files, client)
            return nodes.follow(client)
        finally:
            nodes.close()
    finally:
        with contextlib.suppress(Exception):  # as where Ray is gone
            if ray.is_initialized():
                remove_placement_group(group)


def _await_place(order: Order, group: Any, client: Client) -> None:
    began = time.monotonic()
    while True:
        nodes = [node["Resources"] for node in _nodes() if _fits(node, order.labels)]
        never = ray_placing.why_never(order.bundle, order.size, order.strategy, nodes)
        if never is not None and not order.grows:
            fix = "ask for less, or, if the cluster grows, set autoscaling: true"
            raise EngineEnded(EngineEnd.failed("%s. Fix: %s" % (never, fix)))
        if group.wait(_LOOK_S):
            return
        free, total = ray.available_resources(), ray.cluster_resources()
        why = never or ray_placing.missing(order.bundle, order.size, free, total)
        client.tell("queued", message="waits for Ray: " + why)
        if "cancel" in client.asked():
            raise EngineEnded(EngineEnd.canceled())
        if order.patience is not None and time.monotonic() - began > order.patience:
            words = "Ray has found no place for it within %g s: %s" % (order.patience, why)
            raise EngineEnded(EngineEnd.failed(words))


def _nodes() -> List[Dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _fits(node: Mapping[str, Any], labels: Optional[List[Dict[str, str]]]) -> bool:
    """Whether a node has the labels that all bundles want. Ray's operators are left to Ray."""
    if not labels or any(one != labels[0] for one in labels):
        return True
    has = node.get("Labels") or {}
    wanted = {name: value for name, value in labels[0].items() if "!" not in value and "(" not in value}
    return all(has.get(name) == value for name, value in wanted.items())


class Nodes:
    """The job's nodes: actors, by the node's rank."""

    def __init__(self, order: Order, plan: Plan, group: Any) -> None:
        self._order = order
        self._plan = plan
        self._group = group
        self._changed = False  # whether the plan is another than that of the parcel
        self._make = ray_node.actor_class()
        self._actors: Dict[int, Any] = {}  # by bundle
        self._nodes: List[Any] = []
        self._addresses: List[str] = []
        self._hosts: List[str] = []
        self._variables: List[Dict[str, str]] = []
        self._died: Dict[int, EngineEnd] = {}
        self._restarted = float("-inf")

    def place(self, client: Client) -> None:
        """Find out where the bundles are, and start an actor in each that becomes a node."""
        is_shared = self._order.per_rank and "processes" in self._plan["distribution"]
        places = self._places()
        if "GPU" in self._order.bundle:  # only who is in a bundle is told which they are
            for bundle in range(self._order.size):
                self._start_actor(bundle)
            gpus = self._answers([self._actors[bundle].gpus.remote() for bundle in range(self._order.size)], client)
            places = [place._replace(gpus=ids) for place, ids in zip(places, gpus)]
        nodes = [ray_placing.Node([bundle], place.gpus) for bundle, place in enumerate(places)]
        if is_shared:
            nodes = ray_placing.nodes_of(places)
            sizes = [len(node.bundles) for node in nodes]
            self._plan["distribution"].update({"processes": max(sizes), "per_node": sizes})
        if self._order.per_rank:
            self._plan["nodes"] = len(nodes)
            self._changed = True
            client.planned(self._plan)
        first = [node.bundles[0] for node in nodes]
        for bundle in first:
            self._start_actor(bundle)
        for bundle in set(self._actors) - set(first):  # the bundle stays taken without it
            ray.kill(self._actors.pop(bundle))
        self._nodes = [self._actors[bundle] for bundle in first]
        self._addresses = [places[bundle].address for bundle in first]
        self._hosts = ray_placing.host_names([places[bundle] for bundle in first])
        self._variables = [self._of_node(node) for node in nodes]
        for rank, (host, node) in enumerate(zip(self._hosts, nodes)):
            client.tell("allocated", node=rank, host=host, **({"gpus": node.gpus} if node.gpus else {}))

    def _places(self) -> List[ray_placing.NodeBundle]:
        machines = {node["NodeID"]: node for node in ray.nodes()}
        ids = placement_group_table(self._group)["bundles_to_node_id"]
        found = [machines[ids[bundle]] for bundle in range(self._order.size)]
        return [
            ray_placing.NodeBundle(node["NodeID"], node["NodeManagerAddress"], node["NodeManagerHostname"], [])
            for node in found
        ]

    def _start_actor(self, bundle: int) -> None:
        if bundle in self._actors:
            return
        amounts = dict(self._order.bundle)
        taken: Dict[str, Any] = {"num_cpus": amounts.pop("CPU", 0), "num_gpus": amounts.pop("GPU", 0)}
        if "memory" in amounts:
            taken["memory"] = amounts.pop("memory")
        named = {"name": self._order.name, "namespace": NAMESPACE} if self._order.name and not bundle else {}
        try:
            options = self._make.options(
                **taken, **named, resources=amounts, runtime_env=self._order.runtime_env or None,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle),
            )  # fmt: skip
            self._actors[bundle] = options.remote(self._order.run, self._order.foreign, self._order.shed)
        except (ValueError, TypeError) as error:  # of runtime_env, before anything is started
            raise _unfit_environment(error) from None

    def _of_node(self, node: ray_placing.Node) -> Dict[str, str]:
        variables = {}
        if len(node.bundles) > 1 and node.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(node.gpus)
        if "OMP_NUM_THREADS" not in self._order.env_vars:
            # Ray has set it for the actor: as many as it has processors, or one.
            ranks = 1 if self._order.per_rank else int(self._plan["distribution"].get("processes", 1))
            variables["OMP_NUM_THREADS"] = str(max(1, int(self._order.bundle.get("CPU", 0) // ranks)))
        return variables

    def start(self, files: Mapping[str, bytes], client: Client) -> None:
        everything = ray.put(dict(files))
        made = [node.prepare.remote(everything, address) for node, address in zip(self._nodes, self._addresses)]
        offers = self._answers(made, client)
        plan = json.dumps(self._plan).encode() if self._changed else None
        self._answers(
            [
                node.start.remote(rank, offers[0], self._hosts, self._variables[rank], plan)
                for rank, node in enumerate(self._nodes)
            ],
            client,
        )

    def _answers(self, calls: List[Any], client: Client) -> List[Any]:
        """What actors answer that are just being started."""
        while True:
            ready, waiting = ray.wait(calls, num_returns=len(calls), timeout=_LOOK_S)
            for call in ready if waiting else calls:
                try:
                    ray.get(call)
                except exceptions.RuntimeEnvSetupError as error:
                    raise _unfit_environment(error) from None
                except exceptions.RayError as error:
                    failed = EngineEnd.failed("an actor of the job could not be started: %s" % _words(error))
                    raise EngineEnded(_taken("an actor of the job", error, None) or failed) from None
            if not waiting:
                return list(ray.get(calls))
            if "cancel" in client.asked():
                raise EngineEnded(EngineEnd.canceled())

    # -- while it runs -------------------------------------------------------------------------------------------

    def follow(self, client: Client) -> Optional[int]:
        """Bring in what the nodes write until all have ended; the exit code of node 0."""
        codes: Dict[int, int] = {}
        calls = {node.lines.remote(_READ_S): rank for rank, node in enumerate(self._nodes)}
        since, deadline = 0.0, None
        while calls:
            if not ray.is_initialized():
                raise EngineEnded(EngineEnd.lost("the Ray session was shut down while the job ran in it"))
            ready, _ = ray.wait(list(calls), num_returns=1, timeout=0.1)
            ready = ray.wait(list(calls), num_returns=len(calls), timeout=0)[0] if ready else []
            for call in ready:
                rank = calls.pop(call)
                code = self._read(rank, call, client)
                if code is None and rank not in self._died:
                    calls[self._nodes[rank].lines.remote(_READ_S)] = rank
                elif code is not None:
                    codes[rank] = code
            for request in client.asked():
                if 0 not in self._died and 0 not in codes:
                    self._nodes[0].ask.remote(request)
            if self._died and deadline is None:
                since = time.monotonic()
                deadline = since + self._plan["heartbeat_s"] + self._plan["grace_s"] + _PATIENCE_S
            if deadline is not None and (time.monotonic() > deadline or self._restarted > since - _PATIENCE_S):
                break
        for rank in codes:
            client.leave(rank, self._left(rank))
        for end in self._died.values():
            raise EngineEnded(end)
        return codes.get(0)

    def _read(self, rank: int, call: Any, client: Client) -> Optional[int]:
        try:
            lines, code = ray.get(call)
        except exceptions.ActorUnavailableError:  # for now, or for ever: the next call says it
            return None
        except exceptions.RayError as error:
            self._died[rank] = self._lost(rank, error)
            return None
        client.take(rank, lines)
        if any(one.startswith(b"events:") and _RESTART in one for one in lines):
            self._restarted = time.monotonic()  # it would wait for a node that was lost, which nobody replaces
        return None if code is None else int(code)

    def _lost(self, rank: int, error: exceptions.RayError) -> EngineEnd:
        who = "node %d (%s)" % (rank, self._hosts[rank])
        return _taken(who, error, rank) or EngineEnd.lost("%s was lost: %s" % (who, _words(error)), rank)

    def _left(self, rank: int) -> Iterator[bytes]:
        while True:
            try:
                chunk = ray.get(self._nodes[rank].left.remote())
            except exceptions.RayError:
                return
            if chunk is None:
                return
            yield chunk

    def close(self) -> None:
        """End what still runs, and give the actors back."""
        if not ray.is_initialized():
            return
        with contextlib.suppress(exceptions.RayError):
            closing = [node.close.remote() for rank, node in enumerate(self._nodes) if rank not in self._died]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=self._plan["grace_s"] + _PATIENCE_S)
        for actor in self._actors.values():
            with contextlib.suppress(Exception):  # it may be gone, or Ray itself
                ray.kill(actor)


def _taken(who: str, error: exceptions.RayError, at: Optional[int]) -> Optional[EngineEnd]:
    """What became of who was ended by Ray itself; None where it was not."""
    words = _words(error)
    if getattr(error, "preempted", False):
        return EngineEnd.preempted("%s was taken away: %s" % (who, words), at)
    if isinstance(error, exceptions.OutOfMemoryError) or "low on memory" in words:
        return EngineEnd.out_of_memory("%s was killed: %s" % (who, words), at)
    return None


def _unfit_environment(error: Exception) -> EngineEnded:
    """By the last of the errors that a traceback of Ray's agent ends in."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if _RAISED.match(line)] or lines[:1]
    words = "runtime_env cannot be set up: %s. Fix: correct runtime_env of the compute or the job"
    return EngineEnded(EngineEnd.failed(words % said[-1][:250].rstrip(". ")))


def _words(error: BaseException) -> str:
    """What an error of Ray says, in one line; first of all what is not about Ray's own ids."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    said = [line for line in lines if not line.startswith("The actor died unexpectedly")] or lines
    return " ".join(said)[:300] or type(error).__name__
