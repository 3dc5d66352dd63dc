"""What is wrong with a machine, or with the nodes of a job among themselves: pure functions of what was read there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..spec.text import bytes_text, ranges, seconds_text
from .finding import OK, PROBLEM, WARNING, Finding, worst_first

if TYPE_CHECKING:
    from ..spec.preflight_messages import Measured, NodeReport

#: Docker gives 64 MiB; the workers of one DataLoader, and NCCL between the GPUs of a node, want more.
SHM_WANTED = 1 << 30
DISK_WANTED, DISK_NEEDED = 1 << 30, 50 << 20  # bytes free: a warning below the first, a problem below the second
FILES_WANTED = 4096  # open files: 1,024, as many systems have it, is what DataLoader workers run out of
PROCESSES_WANTED = 4096
CLOCK_WARNING, CLOCK_PROBLEM = 0.1, 5.0  # seconds off node 0's clock
_MOST_PAIRS = 20  # pairs that cannot connect and are named one by one


# -- one machine -------------------------------------------------------------------------------------------------


def of_machine(facts: Mapping[str, Any]) -> List[Finding]:
    """Everything that can be said of one machine by itself, what is right included."""
    return [
        _python(facts),
        *_packages(facts),
        *_gpus(facts),
        *_infiniband(facts),
        *_limits(facts),
        _memory(facts),
        *_shm(facts),
        *(_disk(disk) for disk in facts.get("disks") or ()),
        *_clock(facts),
    ]


def _python(facts: Mapping[str, Any]) -> Finding:
    if not facts.get("python"):
        return Finding(PROBLEM, "python", "no python that starts is on PATH", "use an image or environment with one")
    venv = " (virtual environment)" if facts.get("venv") else ""
    return Finding(OK, "python", "%s, %s%s" % (facts["python"], facts.get("executable"), venv))


def _packages(facts: Mapping[str, Any]) -> Iterator[Finding]:
    known = facts.get("packages") or {}
    if "torch" not in known:
        yield Finding(OK, "torch", "not installed in this Python; only PyTorch jobs need it")
        return
    cuda = known.get("cuda", "none")
    yield Finding(OK, "torch", "%s, %s" % (known["torch"], "built without CUDA" if cuda == "none" else "CUDA " + cuda))
    if "nccl" in known:
        yield Finding(OK, "nccl", known["nccl"])
    if facts.get("gpus") and cuda == "none" and "rocm" not in known["torch"]:
        yield Finding(WARNING, "torch", "built without CUDA, and there are GPUs", "install a CUDA build of torch")


def _gpus(facts: Mapping[str, Any]) -> Iterator[Finding]:
    gpus, driver = facts.get("gpus") or [], facts.get("driver")
    if driver is None and not gpus:
        yield Finding(OK, "gpus", "none (no NVIDIA driver)")
    elif not gpus:
        fix = "see `dmesg | grep -i nvrm`; in a container, give it the GPUs (docker: --gpus all)"
        yield Finding(PROBLEM, "gpus", "the NVIDIA driver %s shows no GPU" % driver, fix)
    else:
        models = [gpu.get("model") or "unknown model" for gpu in gpus]
        counted = ", ".join("%d x %s" % (models.count(model), model) for model in dict.fromkeys(models))
        yield Finding(OK, "gpus", "%s, driver %s" % (counted, driver))


def _infiniband(facts: Mapping[str, Any]) -> Iterator[Finding]:
    ports = facts.get("infiniband") or []
    for port in ports:
        name = "%s port %s" % (port["device"], port["port"])
        if port["state"] == "ACTIVE":
            yield Finding(OK, "infiniband", "%s: %s, %s" % (name, port["rate"], port["link_layer"]))
        else:
            fix = "see to its cable and subnet manager, or leave it out with NCCL_IB_HCA=^%s" % port["device"]
            yield Finding(WARNING, "infiniband", "%s is %s" % (name, port["state"]), fix)
    if ports and (facts.get("limits") or {}).get("memlock") is not None:
        text = "locked memory is limited to %s, and RDMA must lock its buffers" % bytes_text(facts["limits"]["memlock"])
        yield Finding(WARNING, "limits", text, "ulimit -l unlimited (docker: --ulimit memlock=-1)")


def _limits(facts: Mapping[str, Any]) -> Iterator[Finding]:
    limits = facts.get("limits") or {}
    if not limits:
        return
    poor = False
    for name, what, wanted, option in (
        ("nofile", "open files", FILES_WANTED, "n"),
        ("nproc", "processes", PROCESSES_WANTED, "u"),
    ):
        number = limits.get(name)
        if number is not None and number < wanted:
            poor = True
            fix = "ulimit -%s 65536 (docker: --ulimit %s=65536)" % (option, name)
            yield Finding(WARNING, "limits", "only %d %s are allowed" % (number, what), fix)
    if not poor:
        said = ["open files %s" % (limits.get("nofile") or "unlimited")]
        said += ["locked memory %s" % bytes_text(limits["memlock"])] if "memlock" in limits else []
        said += ["processes %s" % (limits.get("nproc") or "unlimited")]
        yield Finding(OK, "limits", ", ".join(said))


def _memory(facts: Mapping[str, Any]) -> Finding:
    limit, memory = facts.get("memory_limit"), facts.get("memory")
    words = "%s cores" % facts.get("cores") if facts.get("cores") else "cores unknown"
    words += ", %s of memory" % bytes_text(memory) if memory else ""
    words += ", of which the cgroup allows %s" % bytes_text(limit) if limit and limit < (memory or limit + 1) else ""
    return Finding(OK, "resources", words)


def _shm(facts: Mapping[str, Any]) -> Iterator[Finding]:
    shm = facts.get("shm")
    if shm is None:
        return
    words = "/dev/shm has %s, %s free" % (bytes_text(shm["size"]), bytes_text(shm["free"]))
    if shm["size"] >= SHM_WANTED and shm["free"] >= SHM_WANTED // 4:
        yield Finding(OK, "shm", words)
    else:
        fix = "resources.shm_size (docker: --shm-size 8g)" if shm["size"] < SHM_WANTED else "remove what is left in it"
        yield Finding(WARNING, "shm", words + ": DataLoader workers and NCCL share memory there", fix)


def _disk(disk: Mapping[str, Any]) -> Finding:
    words = "%s: %s free of %s" % (disk["path"], bytes_text(disk["free"]), bytes_text(disk["size"]))
    if disk["free"] >= DISK_WANTED:
        return Finding(OK, "disk", words)
    return Finding(PROBLEM if disk["free"] < DISK_NEEDED else WARNING, "disk", words, "make room there")


def _clock(facts: Mapping[str, Any]) -> Iterator[Finding]:
    state = facts.get("clock_synchronised")
    if state:
        yield Finding(OK, "clock", "synchronised")
    elif state is not None:
        text = "the kernel says that nothing synchronises the clock"
        yield Finding(WARNING, "clock", text, "run chrony or systemd-timesyncd (in a virtual machine its host may)")


# -- the nodes of a job among themselves -------------------------------------------------------------------------


class Nodes:
    """Judges what all nodes of a job said. `reports`: node -> its report (see `preflight`); `missing`: node -> why.

    `wanted` has `nodes`, and `gpus`: how many each node's processes take in all (0: it is not said); perhaps `mtu`.
    `measured` is what `bandwidth` reads.
    """

    def __init__(
        self,
        reports: Mapping[int, NodeReport],
        missing: Mapping[int, str],
        wanted: Mapping[str, Any],
        measured: Optional[Measured] = None,
    ) -> None:
        self._measured = measured
        self._reports = reports
        self._missing = missing
        self._wanted = wanted
        self._facts = {node: report["facts"] for node, report in reports.items()}
        hosts = {facts["host"] for facts in self._facts.values()}
        self._one_host = len(hosts) == 1 and len(reports) > 1

    def findings(self) -> List[Finding]:
        """Problems, warnings, and what was measured, the worst first."""
        found = [
            *self._absent(), *self._master_port(), *self._unconnected(), *self._clocks(), *self._gpu_counts(),
            *self._versions(), *self._networks(), *self._names(), *self._machines(),
            *self._bandwidth(),
        ]  # fmt: skip
        return worst_first(found)

    def summary(self) -> str:
        """What was looked at, in one line."""
        count = int(self._wanted["nodes"])
        said = ["%d of %d nodes answered" % (len(self._reports), count)] if self._missing else []
        links = [link for report in self._reports.values() for link in report.get("reached", ())]
        if count > 1:
            good = [link["ms"] for link in links if "ms" in link]
            slowest = " (slowest %.3g ms)" % max(good) if good else ""
            said.append("connect matrix %d/%d ok%s" % (len(good), count * (count - 1), slowest))
            offsets = [report["clock"]["offset"] for report in self._reports.values() if report.get("clock")]
            if offsets:
                said.append("clocks within %s" % seconds_text(max(offsets) - min(offsets)))
        for name in ("python", "torch", "nccl"):
            versions = set(self._versions_of(name).values())
            if len(versions) == 1 and None not in versions:
                said.append("%s %s" % (name, versions.pop()))
        gpus = {len(facts.get("visible_gpus") or ()) for facts in self._facts.values()}
        if len(gpus) == 1:
            each = gpus.pop()
            said.append("%d GPU%s each" % (each, "" if each == 1 else "s") if each else "no GPUs")
        return "%d node%s: %s" % (count, "" if count == 1 else "s", ", ".join(said))

    # -- words ---------------------------------------------------------------------------------------------------

    def _node(self, node: int) -> str:
        host = self._facts[node]["host"] if node in self._facts and not self._one_host else None
        return "node %d (%s)" % (node, host) if host else "node %d" % node

    def _some(self, nodes: Sequence[int]) -> str:
        """`node 3 (h4)`, `nodes 0-2, 5`, `all nodes`."""
        if len(nodes) == 1:
            return self._node(nodes[0])
        if len(nodes) == self._wanted["nodes"]:
            return "all nodes"
        return "nodes " + ranges(nodes)

    # -- each kind of trouble ------------------------------------------------------------------------------------

    def _absent(self) -> Iterator[Finding]:
        for node, why in sorted(self._missing.items()):
            yield Finding(PROBLEM, "answer", "node %d never answered: %s" % (node, why), _FIREWALL)

    def _master_port(self) -> Iterator[Finding]:
        taken = self._reports[0].get("port_taken") if 0 in self._reports else None
        if taken:
            text = "MASTER_PORT %d cannot be bound on %s: %s" % (taken["port"], self._node(0), taken["why"])
            yield Finding(PROBLEM, "port", text, "end what holds it, or leave MASTER_PORT to jobsdk")

    def _unconnected(self) -> Iterator[Finding]:
        bad = {
            (node, link["to"]): link
            for node, report in self._reports.items() for link in report.get("reached", ()) if "ms" not in link
        }  # fmt: skip
        tried = {(node, link["to"]) for node, report in self._reports.items() for link in report.get("reached", ())}
        for node in sorted(self._reports):  # one line for a node that nobody reaches
            inward = [pair for pair in bad if pair[1] == node]
            if len(inward) > 2 and len(inward) == len([pair for pair in tried if pair[1] == node]):
                link = bad[inward[0]]
                text = "no node can connect to %s at %s: %s" % (self._node(node), link["at"], link["error"])
                yield Finding(PROBLEM, "connect", text, _FIREWALL)
                for pair in inward:
                    del bad[pair]
        shown = sorted(bad)
        for first, second in shown[:_MOST_PAIRS]:
            link = bad[(first, second)]
            if (second, first) in bad and second < first:
                continue  # said with the other direction
            what = "connect to" if link["stage"] == "connect" else "receive from"
            text = "%s cannot %s %s at %s: %s" % (
                self._node(first), what, self._node(second), link["at"], link["error"])  # fmt: skip
            if (second, first) in bad:
                text += "; nor the other way: %s" % bad[(second, first)]["error"]
            elif (second, first) in tried:
                text += "; the way back works"
            yield Finding(PROBLEM, "connect", text, _FIREWALL if link["stage"] == "connect" else _LARGE_PACKETS)
        if len(shown) > _MOST_PAIRS:
            yield Finding(PROBLEM, "connect", "%d more pairs cannot connect" % (len(shown) - _MOST_PAIRS))

    def _clocks(self) -> Iterator[Finding]:
        for node, report in sorted(self._reports.items()):
            clock = report.get("clock")
            if clock is None or abs(clock["offset"]) - clock["rtt"] / 2 <= CLOCK_WARNING:
                continue
            how = "ahead of" if clock["offset"] > 0 else "behind"
            off = seconds_text(abs(clock["offset"]))
            level = PROBLEM if abs(clock["offset"]) > CLOCK_PROBLEM else WARNING
            text = "the clock of %s is %s %s that of node 0" % (self._node(node), off, how)
            yield Finding(level, "clock", text, "have a time server set the clocks of all nodes (chrony, timesyncd)")

    def _gpu_counts(self) -> Iterator[Finding]:
        wanted = self._wanted.get("gpus") or 0
        counts = {node: len(facts.get("visible_gpus") or ()) for node, facts in self._facts.items()}
        for count, nodes in sorted(_grouped(counts).items()):
            if count < wanted:
                bare = all(self._facts[node].get("driver") is None for node in nodes)
                text = "the job takes %d GPU%s of a node, and %s %s %s" % (
                    wanted, "" if wanted == 1 else "s", self._some(nodes), "have" if len(nodes) > 1 else "has",
                    "no NVIDIA driver" if bare and not count else count or "none")  # fmt: skip
                fix = "ask the compute for GPUs (resources.instance_type), or lower gpus_per_process"
                yield Finding(PROBLEM, "gpus", text, fix)
        shared: Dict[Any, List[int]] = {}
        for node, facts in self._facts.items():
            key = (facts.get("machine"), tuple(gpu["bus"] for gpu in facts.get("gpus") or ()))
            if key[1] and counts[node] >= wanted:
                shared.setdefault(key, []).append(node)
        for (_, buses), nodes in shared.items():
            if wanted * len(nodes) > len(buses):
                text = "%s share %d GPUs, and the job takes %d" % (
                    self._some(nodes), len(buses), wanted * len(nodes))  # fmt: skip
                yield Finding(PROBLEM, "gpus", text, "use fewer nodes, or fewer processes on each")
        if len(set(counts.values())) > 1 and min(counts.values()) >= wanted:
            yield Finding(WARNING, "gpus", "the number of GPUs differs: %s" % self._spread(counts))

    def _versions_of(self, name: str) -> Dict[int, Optional[str]]:
        if name in ("python", "driver"):
            return {node: facts.get(name) for node, facts in self._facts.items()}
        return {node: (facts.get("packages") or {}).get(name) for node, facts in self._facts.items()}

    def _versions(self) -> Iterator[Finding]:
        packages = {name for facts in self._facts.values() for name in facts.get("packages") or ()}
        for name in ["python", "driver", *sorted(packages)]:
            versions = self._versions_of(name)
            if len(set(versions.values())) > 1:
                level = WARNING if name in ("python", "driver") else PROBLEM
                said = {"driver": "the NVIDIA driver", "python": "Python", "cuda": "torch's CUDA"}.get(name, name)
                text = "%s is not the same on all nodes: %s" % (said, self._spread(versions))
                fix = "update the nodes alike" if name == "driver" else "give all nodes one image or environment"
                yield Finding(level, "versions", text, fix)

    def _networks(self) -> Iterator[Finding]:
        if len(self._reports) < 2:
            return
        mtus = {node: report.get("mtu") for node, report in self._reports.items()}
        wanted = self._wanted.get("mtu") or 0
        low = [node for node, mtu in sorted(mtus.items()) if mtu is not None and mtu < wanted]
        if low:
            text = "the compute's network.mtu is %d, and the MTU towards node 0 is %s" % (
                wanted, self._spread({node: mtus[node] for node in low}))  # fmt: skip
            yield Finding(WARNING, "network", text, "ip link set dev INTERFACE mtu %d, on the switches too" % wanted)
        elif len(set(mtus.values())) > 1:
            text = "the MTU towards node 0 is not the same on all nodes: %s" % self._spread(mtus)
            yield Finding(WARNING, "network", text, "set one MTU on all nodes: large messages may be lost otherwise")
        ports = {
            node: len([port for port in facts.get("infiniband") or () if port["state"] == "ACTIVE"])
            for node, facts in self._facts.items()
        }
        if len(set(ports.values())) > 1:
            text = "the number of active InfiniBand ports is not the same on all nodes: %s" % self._spread(ports)
            yield Finding(WARNING, "infiniband", text, "NCCL_IB_DISABLE=1 makes all use TCP until it is mended")

    def _names(self) -> Iterator[Finding]:
        if len(self._reports) < 2:
            return
        unknown: Dict[Tuple[str, str], List[int]] = {}
        for node, report in sorted(self._reports.items()):
            for other, trouble in (report.get("names") or {}).items():
                what = "its own name" if int(other) == node else "the name of %s" % self._node(int(other))
                unknown.setdefault((what, trouble), []).append(node)
        for (what, trouble), nodes in list(unknown.items())[:_MOST_PAIRS]:
            text = "on %s %s %s" % (self._some(nodes), what, trouble)
            fix = "jobsdk goes by addresses; for what goes by names (ssh, some MPIs) mend DNS or /etc/hosts"
            yield Finding(WARNING, "names", text, fix)

    def _machines(self) -> Iterator[Finding]:
        """What is wrong with single nodes; the same finding on many is reported once. Clocks were compared before."""
        found: Dict[Finding, List[int]] = {}
        for node, facts in sorted(self._facts.items()):
            for finding in of_machine(facts):
                if finding.level != OK and finding.subject != "clock":
                    found.setdefault(finding, []).append(node)
        for finding, nodes in found.items():
            yield finding._replace(text="%s: %s" % (self._some(nodes), finding.text))

    def _bandwidth(self) -> Iterator[Finding]:
        if self._measured is not None:
            from . import bandwidth

            yield from bandwidth.findings(self._measured, self._reports, self._node)

    def _spread(self, values: Mapping[int, Any]) -> str:
        """`2.3.0 on nodes 0-2, none on node 3 (h4)`, the most frequent first."""
        groups = sorted(_grouped(values).items(), key=lambda group: (-len(group[1]), group[1]))
        return ", ".join("%s on %s" % ("none" if value is None else value, self._some(nodes))
                         for value, nodes in groups)  # fmt: skip


_FIREWALL = "open all TCP ports between the nodes (firewall, security group, network policy), and see to the routes"
_LARGE_PACKETS = "large packets are lost on the way: set the same MTU on the nodes and on all between them"


def _grouped(values: Mapping[int, Any]) -> Dict[Any, List[int]]:
    groups: Dict[Any, List[int]] = {}
    for node in sorted(values):
        groups.setdefault(values[node], []).append(node)
    return groups
