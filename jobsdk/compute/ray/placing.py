"""Where the bundles of a placement group can be, and what follows from where they are. Pure.

It travels to the cluster beside `driver`: standard library only, Python 3.8 or later.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

Resources = Mapping[str, float]
#: Of a node's resources those that Ray adds for its own use.
_OF_RAY = ("node:", "object_store_memory", "bundle", "CPU_group", "GPU_group")
_GRAIN = 1e-6  # Ray counts in ten-thousandths; what is lost in sums of floats is far less


class NodeBundle(NamedTuple):
    """Where a bundle has come to be: Ray's node, its address and host name, the ids of the bundle's GPUs."""

    node: str
    address: str
    host: str
    gpus: List[str]


class Node(NamedTuple):
    """A node of the job: the ranks' bundles in order, and the GPUs that they see."""

    bundles: List[int]
    gpus: List[str]


def said(resources: Resources) -> str:
    """As `{CPU: 4, GPU: 0.5}`."""
    return "{%s}" % ", ".join("%s: %s" % (name, _number(amount)) for name, amount in sorted(resources.items()))


def _number(amount: float) -> str:
    return "%d" % amount if amount == int(amount) else "%g" % amount


def why_never(bundle: Resources, count: int, strategy: str, nodes: Sequence[Resources]) -> Optional[str]:
    """Why nodes with such resources in all can never hold `count` such bundles; None where they can."""
    for name, amount in sorted(bundle.items()):
        most = max((node.get(name, 0.0) for node in nodes), default=0.0)
        if amount > most + _GRAIN:
            return "no node of the cluster has %s; %s" % (_wanted(name, amount), _instead(name, most, nodes))
    rooms = [_room(bundle, node) for node in nodes]
    what = "%d x %s" % (count, said(bundle))
    if strategy == "STRICT_SPREAD" and sum(room > 0 for room in rooms) < count:
        fit = sum(room > 0 for room in rooms)
        return "STRICT_SPREAD of %s needs %d nodes, and %d of the cluster's %d fit" % (what, count, fit, len(nodes))
    if strategy == "STRICT_PACK" and max(rooms, default=0) < count:
        return "STRICT_PACK of %s needs one node for all, and the largest has room for %d" % (what, max(rooms))
    if sum(rooms) < count:
        return "%s do not fit: the cluster's %d node(s) have room for %d" % (what, len(nodes), sum(rooms))
    return None


def _wanted(name: str, amount: float) -> str:
    """A mark of a node, such as the kind of its GPUs, has no amount that says anything."""
    return name if ":" in name and amount < 1 else "%s: %s" % (name, _number(amount))


def _instead(name: str, most: float, nodes: Sequence[Resources]) -> str:
    if most:
        return "the most is %s" % _number(most)
    kind = name.partition(":")[0] + ":" if ":" in name else ""
    there = sorted({one for node in nodes for one in node if one.startswith(kind) and not one.startswith(_OF_RAY)})
    return "there are %s" % ", ".join(there) if there else "there are none like it"


def _room(bundle: Resources, node: Resources) -> int:
    """How many bundles one node holds. A bundle of nothing fits as often as one likes."""
    rooms = (int((node.get(name, 0.0) + _GRAIN) / amount) for name, amount in bundle.items() if amount)
    return min(rooms, default=1 << 30)


def missing(bundle: Resources, count: int, free: Resources, total: Resources) -> str:
    """What the bundles wait for."""
    short = [
        "%s: %s asked for, %s of %s free"
        % (name, _number(amount * count), _number(round(free.get(name, 0.0), 4)), _number(total.get(name, 0.0)))
        for name, amount in sorted(bundle.items())
        if free.get(name, 0.0) + _GRAIN < amount * count
    ]
    return "; ".join(short) or "enough is free in all, but not on single nodes"


def nodes_of(places: Sequence[NodeBundle]) -> List[Node]:
    """The job's nodes where each bundle is one rank: one for each node of Ray, that of the first bundle first.

    As Ray Train does it, ranks of a node come by their lowest GPU, and see the GPUs of all of them. The GPUs are in
    the order of the ranks, so that a rank finds its own by its place among them.
    """
    groups: Dict[str, List[int]] = {}
    for bundle, place in enumerate(places):
        groups.setdefault(place.node, []).append(bundle)
    found = []
    for bundles in groups.values():
        bundles.sort(key=lambda bundle: _lowest(places[bundle].gpus))
        found.append(Node(bundles, list(dict.fromkeys(gpu for bundle in bundles for gpu in places[bundle].gpus))))
    return found


def _lowest(gpus: Sequence[str]) -> Any:
    return min(((0, int(gpu), "") if gpu.isdigit() else (1, 0, gpu) for gpu in gpus), default=(0, 0, ""))


def host_names(places: Sequence[NodeBundle]) -> List[str]:
    """Names of nodes for messages; the addresses where machines that differ have one name."""
    hosts = {(place.host, place.node) for place in places}
    if len({host for host, _ in hosts}) < len(hosts):
        return [place.address for place in places]
    return [place.host for place in places]
