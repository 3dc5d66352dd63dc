"""One look at a run on Kubernetes: fetches its logs and events, and reports what only the cluster knows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from jobsdk.compute.ends import EngineEnd, finish
from jobsdk.compute.kubernetes import admission, kueue, logs, lost
from jobsdk.compute.kubernetes.api import Api, Gone, Object, Refused
from jobsdk.compute.kubernetes.logs import Log
from jobsdk.compute.kubernetes.objects import LABEL, is_restarted
from jobsdk.compute.kubernetes.pods import HOPELESS, STUCK, Pod
from jobsdk.compute.shipping.relayed import Mirror
from jobsdk.errors import ComputeError
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.silence import SEEN

_ASKED = 4  # waiting pods whose events are read in one look
_PATIENCE_S = 15.0  # seconds that the last lines of other nodes are waited for, after node 0 has said that all is over
_START_S = 15.0  # seconds that a new pod has to start on a machine where another one was lost
_IMAGE_PATIENCE_S = 300.0  # seconds in which an image may turn up


class Look:
    """Brings the folder of a run here up to date. Who makes one holds the run's lock until it is done.

    Node 0's log is always read: its events say how the run is. `nodes`: whose logs are read besides while the run goes
    on; at its end all are. None: all. Raises ComputeError where the cluster cannot be asked.
    """

    def __init__(self, api: Api, run: RunFolder, where: Mapping[str, Any], nodes: Collection[int] | None = ()) -> None:
        self._api = api
        self._run = run
        self._kind, self._name = where["kind"], where["name"]
        self._nodes = nodes
        self._mirror = Mirror(run)
        self._state: dict[str, Any] = {"pods": {}, "told": [], "strays": {}, **run.read_json(lost.STATE)}
        self._mirror.strays.update({int(node): lines for node, lines in self._state["strays"].items()})
        self._told = set(self._state["told"])
        self._is_ended = False
        self._before = repr(self._state)

    def take(self) -> bool:
        """Ask for the objects and the new lines. Whether the run's end has been written down."""
        try:
            job: Object | None = self._api.get(self._kind, self._name)
        except Gone:
            job = None
        pods = _by_age(map(Pod, self._api.list("Pod", labelSelector=f"{LABEL}={self._name}")))
        self._know(pods)
        return self.see(job, pods, self._asked([pod for pod in pods if self.is_wanted(pod)]))

    def see(self, job: Object | None, pods: Iterable[Pod], new: Iterable[tuple[str, Log]]) -> bool:
        """Take in the objects as they are and new pieces of logs. Whether the run's end has been written down."""
        pods = _by_age(pods)
        self._know(pods)
        self._tell_places(job, pods)
        self._tell_refusals(job, pods)
        self._read(pods, new)
        is_over = self._mirror.tell()
        if is_over or job is None or _has_ended(job) or (pods and all(pod.is_over for pod in _latest(pods).values())):
            # Others may have more to say: they are read when they have ended, or nobody waits for them any longer.
            self._read(pods, self._asked([pod for pod in pods if pod.is_over or not is_over]))
            is_over = self._mirror.tell()
        elif job is not None:
            self._replace_lost(pods)
        self._keep()
        self._judge(job, pods, is_over)
        return self._is_ended

    def take_in(self, new: Iterable[tuple[str, Log]]) -> bool:
        """Take in new pieces of logs alone. Whether node 0 says that the run is over."""
        self._read((), new)
        is_over = self._mirror.tell()
        self._keep()
        return is_over

    def unread(self, pods: Iterable[Pod]) -> dict[str, str | None]:
        """The wanted logs that may have more to say, each with the second of its last line."""
        known = self._state["pods"]
        wanted = [pod for pod in pods if pod.name in known and pod.has_log and self.is_wanted(pod)]
        return {pod.name: known[pod.name]["since"] for pod in wanted if not known[pod.name]["whole"]}

    def tell_lost_log(self, job: Object | None, pod: Pod) -> None:
        """A pod was deleted while its log was read."""
        if job is not None and "deletionTimestamp" not in job["metadata"]:
            who = f"node {pod.node} (pod {pod.name})"
            self._tell("warning", message=f"the pod of {who} was deleted: its last lines may be missing")
            self._keep()

    def _read(self, pods: Iterable[Pod], new: Iterable[tuple[str, Log]]) -> None:
        """Take in new pieces of the logs of known pods."""
        known, by_name, now = self._state["pods"], {pod.name: pod for pod in pods}, time.time()
        for name, log in new:
            mine, pod = known[name], by_name.get(name)
            for line in log.lines:
                self._mirror.take(mine["node"], line, mine["life"])
            mine["since"] = log.until or mine["since"]
            mine["ended"] = mine.get("ended") or any(map(logs.is_end, log.lines[-1:]))
            if pod is None or (pod.is_over and (mine["ended"] or pod.is_settled(mine.setdefault("over", now)))):
                mine["whole"] = log.is_whole

    def is_wanted(self, pod: Pod) -> bool:
        """Whether the pod's log is read while the run goes on."""
        return self._nodes is None or pod.node == 0 or pod.node in self._nodes

    def _know(self, pods: Iterable[Pod]) -> None:
        known: dict[str, dict[str, Any]] = self._state["pods"]
        lives = Counter(one["node"] for one in known.values())
        for pod in pods:
            if pod.name not in known:
                known[pod.name] = {"node": pod.node, "life": lives[pod.node], "since": None, "whole": False}
                lives[pod.node] += 1

    def _asked(self, pods: Iterable[Pod]) -> Iterator[tuple[str, Log]]:
        """What is new in the logs of pods."""
        known = self._state["pods"]
        names = [pod.name for pod in pods if pod.has_log and not known[pod.name]["whole"]]
        return zip(names, logs.read_all(self._api, [(name, known[name]["since"]) for name in names]), strict=True)

    def _keep(self) -> None:
        nodes = None if self._nodes is None else sorted({0, *self._nodes})
        if self._run.read_json(SEEN).get("nodes", ()) != nodes:
            self._run.write_json(SEEN, {"nodes": nodes})
        self._state["strays"] = {str(node): lines for node, lines in self._mirror.strays.items()}
        if repr(self._state) != self._before:
            self._run.write_json(lost.STATE, self._state)

    # -- what only the cluster knows ---------------------------------------------------------------------------------

    def _tell_places(self, job: Object | None, pods: list[Pod]) -> None:
        for pod in pods:
            if pod.machine:
                self._tell("allocated", node=pod.node, host=pod.machine, pod=pod.name)
        waiting: dict[str, list[int]] = {}
        for pod in pods:
            why = None if pod.has_log else pod.waits_for()
            if why is not None:
                waiting.setdefault(why[1], []).append(pod.node)
        for words, nodes in waiting.items():
            self._tell("queued", message=words, nodes=nodes[:20])
        if job is not None and job["spec"].get("suspend"):
            is_queued = kueue.QUEUE in job["metadata"].get("labels", {})
            self._tell("queued", message=kueue.why(self._api, job) if is_queued else "the Job is suspended")

    def _tell_refusals(self, job: Object | None, pods: list[Pod]) -> None:
        """Why pods are missing or do not start, as the controllers say it in events."""
        wanted = 0 if job is None or job["spec"].get("suspend") else self._run.plan()["nodes"]
        waiting = [pod.name for pod in pods if not pod.has_log and not pod.is_over and pod.waits_for() is None]
        if _has_ended(job or {}) or self._state.get("no_events") or not (waiting or len(pods) < wanted):
            return
        owner = self._name if self._kind == "Job" else f"{self._name}-node-0"
        names = {**({owner: "Job"} if len(pods) < wanted else {}), **dict.fromkeys(waiting[:_ASKED], "Pod")}
        try:
            for words, is_refused in admission.waits(self._api, names):
                self._tell("queued", message=words, **({"refused": True} if is_refused else {}))
        except Refused:  # not everybody may read events
            self._state["no_events"] = True

    def _replace_lost(self, pods: list[Pod]) -> None:
        """Declare pods of lost machines failed, so that the Job replaces them. The cluster finds node 0's loss."""
        known, plan = self._state["pods"], self._run.plan()
        bad = self._state.setdefault("lost_machines", [])
        silent = {node: life for node, life in lost.lives(self._run.events()).items() if node}
        may_restart = is_restarted(plan)
        for pod in pods:
            is_silent = silent.get(pod.node) == known[pod.name]["life"]
            # Until the control plane takes notice, it may put a new pod on the lost machine, where it never starts.
            is_stuck = pod.machine in bad and not pod.has_log and pod.age > _START_S
            if pod.is_over or not (is_silent or is_stuck or (may_restart and pod.is_unreachable)):
                continue
            who = f"node {pod.node} (machine {pod.machine})"
            bad[:] = dict.fromkeys([*bad, pod.machine])
            try:
                lost.declare(self._api, pod.name, pod.status, f"{who} does not answer")
                words = f"{who} does not answer: its pod {pod.name} is replaced"
                self._tell("queued", message=words, nodes=[pod.node])
            except Refused as error:
                if error.code != 403:
                    raise
                why = f"its pod is not replaced before the cluster gives it up: no right to {lost.RIGHT}"
                self._tell("warning", message=f"{who} does not answer, and {why}")

    def _tell(self, event: str, **facts: Any) -> None:
        """Note an event, unless it was noted before."""
        key = repr((event, sorted(facts.items())))
        if key not in self._told:
            self._told.add(key)
            self._state["told"].append(key)
            self._run.append_event(event, **facts)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _judge(self, job: Object | None, pods: list[Pod], is_over: bool) -> None:
        known = self._state["pods"]
        latest = _latest(pods)
        is_read = all(known[pod.name]["whole"] or (pod.is_over and not pod.has_log) for pod in latest.values())
        if is_over:
            if is_read or self._has_waited("over", _PATIENCE_S):
                if not is_read:
                    self._read(pods, self._asked(pods))
                    self._mirror.flush()
                self._finish(latest)
                # A pod that is stuck, or was brought back for node 0, would wait for the others. A Job that Kueue has
                # suspended would start once more, for nobody.
                if not is_read or (job is not None and job["spec"].get("suspend")):
                    self._api.delete(self._kind, self._name)
        elif job is None:
            text = f"the {self._kind} {self._name} is gone: somebody deleted it, or its time to live was over"
            self._end(self._worst(latest) or EngineEnd.lost(text))
        elif is_read and pods and (all(pod.is_over for pod in latest.values()) or _has_ended(job)):
            is_short = job["spec"].get("completions", len(latest)) > len(latest) and not _has_ended(job)
            if is_short and not self._is_cancelled:
                return  # a pod is being replaced
            self._end(self._worst(latest) or EngineEnd.lost("the pods ended without a report"))
        elif _has_ended(job) and self._has_waited("ended", _PATIENCE_S):
            self._end(self._worst(latest) or _end_of_job(job))
        else:
            self._give_up_on(latest)

    def _give_up_on(self, pods: Mapping[int, Pod]) -> None:
        """A pod whose container cannot be started holds all others up."""
        stuck = [(pod, pod.waits_for()) for pod in pods.values() if not pod.has_log]
        bad = [(pod, why) for pod, why in stuck if why is not None and why[0] in STUCK]
        if not bad:
            self._state.pop("stuck", None)
            return
        hopeless = [one for one in bad if one[1][0] in HOPELESS]
        if hopeless or self._has_waited("stuck", _IMAGE_PATIENCE_S):
            pod, why = (hopeless or bad)[0]
            self._api.delete(self._kind, self._name)
            self._end(EngineEnd.failed(f"node {pod.node} (pod {pod.name}) cannot start: {why[1]}", pod.node))

    @property
    def _is_cancelled(self) -> bool:
        return self._run.recorded_state().status == "CancelRequested"

    def _has_waited(self, what: str, seconds: float) -> bool:
        now = time.time()
        if what not in self._state:
            self._state[what] = now
            self._run.write_json(lost.STATE, self._state)
        return bool(now - self._state[what] > seconds)

    def _worst(self, pods: Mapping[int, Pod]) -> EngineEnd | None:
        """How the pod ended that is most likely the cause: one that was killed, before one that only says a code."""
        order = ("out_of_memory", "timeout", "preempted", "node_lost", "bootstrap_error")
        ends = [end for node, pod in sorted(pods.items()) if (end := pod.end(self._mirror.last_words(node)))]
        return min(ends, key=lambda end: order.index(end.failure_class), default=None)

    def _finish(self, pods: Mapping[int, Pod]) -> None:
        """Node 0 has written the report: that is how it ended, but for what node 0 could not know."""
        report = self._mirror.report()
        cause: Mapping[str, Any] = report.get("cause") or {}
        pod = pods.get(cause.get("node", -1))
        end = pod.end("") if pod is not None and cause.get("class") in ("node_lost", "never_started") else None
        if self._is_cancelled:
            end = EngineEnd.canceled()
        elif end is not None and end.failure_class not in ("bootstrap_error", "node_lost"):
            end = end._replace(node=cause["node"])
        elif report:
            end = None
        else:
            end = self._worst(pods) or EngineEnd.lost("the report did not arrive")
        self._end(end, report)

    def _end(self, end: EngineEnd | None, report: Mapping[str, Any] = MappingProxyType({})) -> None:
        finish(self._run, end, report)
        self._is_ended = True
        try:
            self._api.delete("Secret", self._name)
        except ComputeError:
            pass  # it goes with the Job


def _by_age(pods: Iterable[Pod]) -> list[Pod]:
    return sorted(pods, key=lambda pod: pod.created)


def _latest(pods: Iterable[Pod]) -> dict[int, Pod]:
    """The last pod of each node."""
    return {pod.node: pod for pod in pods}


def _has_ended(job: Object) -> bool:
    return any(
        one["type"] in ("Complete", "Completed", "Failed") and one["status"] == "True"
        for one in job.get("status", {}).get("conditions") or ()
    )


def _end_of_job(job: Object) -> EngineEnd:
    for one in job.get("status", {}).get("conditions") or ():
        if one["type"] == "Failed" and one["status"] == "True":
            text = f"the {job['kind']} failed: {one.get('reason', '')}: {one.get('message', '')}"
            if one.get("reason") == "DeadlineExceeded":
                return EngineEnd.timed_out(text)
            return EngineEnd.failed(text, exit_code=1)
    return EngineEnd.lost("the pods ended without a report")
