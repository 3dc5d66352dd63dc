"""What is to be said of the bandwidth between nodes, from what was measured there. Pure.

All rates are in Gbit/s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Mapping, Optional

from ..spec.text import bytes_text
from .finding import OK, WARNING, Finding

if TYPE_CHECKING:
    from ..spec.preflight_messages import AllReduce, Measured, NodeReport, RingLink

#: Less than this part of what is usual, or nominal, is slow.
_SLOW_PAIR, _SLOW_LINK = 1 / 3, 1 / 4
#: More than this many Gbit/s a program in Python cannot be asked to fill.
_FILLS = 20.0
_MOST = 5  # slow pairs that are named

_PAIR_FIX = "look at the two nodes' cables, switch ports and negotiated speeds (ethtool), and at what else uses them"
_LINK_FIX = "look at the negotiated speed (ethtool), the MTU, and at what else uses the network"


def nominal(reports: Mapping[int, NodeReport], backend: Optional[str] = None) -> Optional[float]:
    """The rate of the slowest node's link, as its device tells it: with NCCL that of InfiniBand, if all have it."""
    if backend == "nccl":
        best = [_infiniband(report["facts"]) for report in reports.values()]
        if all(best):
            return min(rate for rate in best if rate)
    speeds: List[float] = []
    for report in reports.values():
        found = [
            one["speed"] for one in report["facts"].get("interfaces") or () if one["name"] == report.get("interface")
        ]
        if not found or not found[0]:
            return None
        speeds.append(found[0] / 1000)
    return min(speeds, default=None)


def _infiniband(facts: Mapping[str, Any]) -> Optional[float]:
    """The rate of one active port: one process on each node uses one."""
    rates = []
    for port in facts.get("infiniband") or ():
        number = (port.get("rate") or "").split(" ")[0]
        if port["state"] == "ACTIVE" and number.replace(".", "", 1).isdigit():
            rates.append(float(number))
    return max(rates, default=None)


def findings(measured: Measured, reports: Mapping[int, NodeReport], name: Callable[[int], str]) -> Iterator[Finding]:
    """What was measured, beside what the link could do, and pairs that are slow; `name` is how a node is called."""
    links = measured["links"]
    good = sorted((link for link in links if "gbps" in link), key=lambda link: link["gbps"])
    for link in links:
        if "error" in link:
            text = "nothing came from %s to %s: %s" % (name(link["from"]), name(link["to"]), link["error"])
            yield Finding(WARNING, "bandwidth", text, _PAIR_FIX)
    pairs = _slow_pairs(good)
    for link in pairs[:_MOST]:
        text = "%s sends to %s at only %s; usual here is %s" % (
            name(link["from"]), name(link["to"]), rate_text(link["gbps"]), rate_text(_usual(good)))  # fmt: skip
        yield Finding(WARNING, "bandwidth", text, _PAIR_FIX)
    where = _where(reports)
    if good:
        yield _line("TCP", good[0]["gbps"], nominal(reports), where, len(reports), told=bool(pairs))
    reduced: AllReduce = measured.get("all_reduce") or {}
    if "error" in reduced:
        text = "torch's all-reduce (%s) could not be measured: %s" % (reduced["backend"], reduced["error"])
        yield Finding(WARNING, "bandwidth", text, "jobsdk job logs RUN shows what torch said")
    elif reduced:
        what = "torch's all-reduce (%s, %s)" % (reduced["backend"], bytes_text(reduced["bytes"]))
        rate = nominal(reports, reduced["backend"])
        yield _line(what, reduced["gbps"], rate, where, len(reports), told=bool(pairs) or reduced["backend"] == "gloo")


def _line(what: str, rate: float, of: Optional[float], where: str, nodes: int, told: bool) -> Finding:
    """What something reaches. `told`: that it is slow has been said, or is its own way."""
    text = "%s between %d nodes: %s" % (what, nodes, _of(rate, of))
    if of is None:
        return Finding(OK, "bandwidth", "%s (%sthe link's own rate is not known)" % (text, where and where + "; "))
    part = rate / min(of, _FILLS)
    words = "as much as can be expected" if part >= 0.6 else "less than can be expected"
    words = "far less than can be expected" if part < _SLOW_LINK else words
    text += "%s: %s" % (" (%s)" % where if where else "", words)
    if part < _SLOW_LINK and not told:
        return Finding(WARNING, "bandwidth", text, _LINK_FIX)
    return Finding(OK, "bandwidth", text)


def _slow_pairs(good: List[RingLink]) -> List[RingLink]:
    """Links that are far slower than the others, the slowest first."""
    return [link for link in good if len(good) > 1 and link["gbps"] < _SLOW_PAIR * _usual(good)]


def _usual(good: List[RingLink]) -> float:
    """The rate of the middle link; of two the faster."""
    return good[len(good) // 2]["gbps"]


def _where(reports: Mapping[int, NodeReport]) -> str:
    names = {report.get("interface") for report in reports.values()}
    return "/".join(sorted(name for name in names if name))


def _of(rate: float, of: Optional[float]) -> str:
    """`3.1 of 10 Gbit/s`, `12 Mbit/s of 10 Gbit/s`, `3.1 Gbit/s`."""
    if of is None:
        return rate_text(rate)
    said = rate_text(rate)
    return "%s of %g Gbit/s" % (said.replace(" Gbit/s", ""), of)


def rate_text(gbps: float) -> str:
    """`400 Gbit/s`, `9.4 Gbit/s`, `940 Mbit/s`, `0.4 Mbit/s`."""
    number, unit = (gbps, "Gbit/s") if gbps >= 0.9995 else (gbps * 1000, "Mbit/s")
    return "%s %s" % ("%.2g" % number if number < 99.5 else "%.0f" % number, unit)
