"""One look at a run on Kubernetes: fetches its logs and events, and reports what only the cluster knows."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple

from jobsdk.compute.ends import EngineEnd, finish
from jobsdk.compute.kubernetes import admission, lost
from jobsdk.compute.kubernetes.api import Api, Gone, Object, Refused
from jobsdk.compute.kubernetes.objects import CONTAINER, LABEL
from jobsdk.compute.shipping.relayed import Mirror
from jobsdk.errors import ComputeError
from jobsdk.runs.folder import RunFolder

_STATE = "kubernetes-state.json"
_INDEX = "batch.kubernetes.io/job-completion-index"
_ASKED = 4  # waiting pods whose events are read in one look
_AT_ONCE = 8  # logs that are read at the same time
_ENOUGH = 16 << 20  # bytes of a log in one look
_PATIENCE_S = 15.0  # seconds that the last lines of other nodes are waited for, after node 0 has said that all is over
_IMAGE_PATIENCE_S = 300.0  # seconds in which an image may turn up
#: Why a container that waits will not start by itself.
_HOPELESS = ("InvalidImageName", "ErrImageNeverPull")
_STUCK = (*_HOPELESS, "ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError", "CreateContainerError")


class Pod:
    """What of a pod's state counts."""

    def __init__(self, one: Object) -> None:
        metadata, status = one["metadata"], one.get("status", {})
        self.name: str = metadata["name"]
        index = metadata.get("annotations", {}).get(_INDEX, metadata.get("labels", {}).get(_INDEX, "0"))
        self.node = int(index)
        self.created: str = metadata.get("creationTimestamp") or ""
        self.machine: str | None = one.get("spec", {}).get("nodeName")
        self.status: Object = status
        containers = [
            state for state in status.get("containerStatuses") or () if state.get("name", CONTAINER) == CONTAINER
        ]
        self.container: Object = containers[0].get("state", {}) if containers else {}
        own: Object = next(iter(one.get("spec", {}).get("containers", ())), {})
        self.memory: str | None = own.get("resources", {}).get("limits", {}).get("memory")

    @property
    def has_log(self) -> bool:
        return "running" in self.container or "terminated" in self.container

    @property
    def is_over(self) -> bool:
        return "terminated" in self.container or self.status.get("phase") in ("Succeeded", "Failed")

    def condition(self, kind: str, value: str) -> Object | None:
        """Its condition of that type, if it has that value."""
        found = (one for one in self.status.get("conditions") or () if one["type"] == kind and one["status"] == value)
        return next(found, None)

    def waits_for(self) -> tuple[str, str] | None:
        """(reason, words) of a pod that does not run yet and says why."""
        waiting = self.container.get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason in _STUCK:
            return reason, f"{reason}: {waiting.get('message') or 'no reason is given'}"
        unscheduled = self.condition("PodScheduled", "False")
        if unscheduled is not None:
            return "Unschedulable", str(unscheduled.get("message") or unscheduled.get("reason"))
        return None

    def end(self, words: str) -> EngineEnd | None:
        """How it ended, where that was no doing of the job's own; `words` are its last ones."""
        who = f"node {self.node} (pod {self.name})"
        ended = self.container.get("terminated") or {}
        if ended.get("reason") == "OOMKilled":
            limit = f" of {self.memory}" if self.memory else ""
            return EngineEnd.out_of_memory(f"{who} was killed: it used more memory than its limit{limit}")
        reason, message = self.status.get("reason"), self.status.get("message") or ""
        if reason == "DeadlineExceeded":
            return EngineEnd.timed_out(f"{who} was ended by its activeDeadlineSeconds")
        taken = self.condition("DisruptionTarget", "True")
        if reason in ("Evicted", "Preempting") or taken is not None:
            why = message or (taken or {}).get("message") or (taken or {}).get("reason") or reason
            return EngineEnd.preempted(f"{who} was taken away: {why}")
        if reason in ("NodeLost", "NodeShutdown", "Terminated", "UnexpectedAdmissionError"):
            return EngineEnd.lost(f"{who} was lost: {message or reason}")
        code = ended.get("exitCode", 0)
        if code:
            why = ended.get("message") or (ended.get("reason") if ended.get("reason") != "Error" else None)
            said = ": ".join(text for text in (why, words) if text)
            text = f"the container of {who} ended with code {code}{': ' + said if said else ''}"
            return EngineEnd.failed(text, exit_code=int(code))
        return None


class Look:
    """`take` brings the folder of a run here up to date. Raises ComputeError where the cluster cannot be asked."""

    def __init__(self, api: Api, run: RunFolder, where: Mapping[str, Any]) -> None:
        self._api = api
        self._run = run
        self._kind, self._name = where["kind"], where["name"]
        self._mirror = Mirror(run)
        self._state: dict[str, Any] = {"pods": {}, "told": [], **run.read_json(_STATE)}
        self._before = repr(self._state)

    def take(self) -> None:
        try:
            job: Object | None = self._api.get(self._kind, self._name)
        except Gone:
            job = None
        pods = sorted(
            map(Pod, self._api.list("Pod", labelSelector=f"{LABEL}={self._name}")), key=lambda pod: pod.created
        )
        self._tell_places(job, pods)
        self._tell_refusals(job, pods)
        self._read_logs(pods)
        is_over = self._mirror.tell()
        if not is_over and job is not None:
            self._replace_lost(pods)
        if repr(self._state) != self._before:
            self._run.write_json(_STATE, self._state)
        self._judge(job, pods, is_over)

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
            queue = job["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
            self._tell("queued", message=f"waits in the Kueue queue {queue}" if queue else "the Job is suspended")

    def _tell_refusals(self, job: Object | None, pods: list[Pod]) -> None:
        """Why pods are missing or do not start, as the controllers say it in events."""
        wanted = 0 if job is None or job["spec"].get("suspend") else self._run.plan()["nodes"]
        waiting = [pod.name for pod in pods if not pod.has_log and not pod.is_over and pod.waits_for() is None]
        if _has_ended(job or {}) or self._state.get("no_events") or not (waiting or len(pods) < wanted):
            return
        owner = self._name if self._kind == "Job" else f"{self._name}-node-0"
        names = {**({owner: "Job"} if len(pods) < wanted else {}), **dict.fromkeys(waiting[:_ASKED], "Pod")}
        try:
            for words in admission.waits(self._api, names):
                self._tell("queued", message=words)
        except Refused:  # not everybody may read events
            self._state["no_events"] = True

    def _replace_lost(self, pods: list[Pod]) -> None:
        """Where node 0 waits for a node that fell silent, declare that node's pod failed: then the Job replaces it."""
        known = self._state["pods"]
        for node, life in lost.lives(self._run.events()).items():
            for pod in pods:
                if pod.node != node or pod.is_over or known[pod.name]["life"] != life or node == 0:
                    continue
                who = f"node {node} (machine {pod.machine})"
                try:
                    lost.declare(self._api, pod.name, pod.status, f"{who} does not answer")
                    self._tell("queued", message=f"{who} does not answer: its pod {pod.name} is replaced", nodes=[node])
                except Refused as error:
                    if error.code != 403:
                        raise
                    why = f"its pod is not replaced before the cluster gives it up: no right to {lost.RIGHT}"
                    self._tell("warning", message=f"{who} does not answer, and {why}")

    def _tell(self, event: str, **facts: Any) -> None:
        """Note an event, unless it was noted before."""
        key = repr((event, sorted(facts.items())))
        if key not in self._state["told"]:
            self._state["told"].append(key)
            self._run.append_event(event, **facts)

    # -- logs --------------------------------------------------------------------------------------------------------

    def _read_logs(self, pods: list[Pod]) -> None:
        known: dict[str, dict[str, Any]] = self._state["pods"]
        for pod in pods:
            if pod.name not in known:
                life = sum(one["node"] == pod.node for one in known.values())
                known[pod.name] = {"node": pod.node, "life": life, "since": None, "whole": False}
        wanted = [pod for pod in pods if pod.has_log and not known[pod.name]["whole"]]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for pod, log in zip(
                wanted, pool.map(lambda pod: self._log(pod, known[pod.name]["since"]), wanted), strict=True
            ):
                mine = known[pod.name]
                for line in log.lines:
                    self._mirror.take(pod.node, line, mine["life"])
                mine["since"] = log.until or mine["since"]
                mine["whole"] = log.is_whole and pod.is_over

    def _log(self, pod: Pod, since: str | None) -> Log:
        lines: list[bytes] = []
        size, until = 0, None
        try:
            for moment, line in self._api.log(pod.name, CONTAINER, since):
                lines.append(line)
                size += len(line)
                until = _second(moment) or until
                if size > _ENOUGH and until != since:
                    return Log(lines, until, False)
        except ComputeError:  # the rest will come with the next look
            return Log(lines, until, False)
        return Log(lines, until, True)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _judge(self, job: Object | None, pods: list[Pod], is_over: bool) -> None:
        known = self._state["pods"]
        latest = {pod.node: pod for pod in pods}
        is_read = all(known[pod.name]["whole"] or (pod.is_over and not pod.has_log) for pod in latest.values())
        if is_over:
            if is_read or self._has_waited("over", _PATIENCE_S):
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
        bad = [(pod, why) for pod, why in stuck if why is not None and why[0] in _STUCK]
        if not bad:
            self._state.pop("stuck", None)
            return
        hopeless = [one for one in bad if one[1][0] in _HOPELESS]
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
            self._run.write_json(_STATE, self._state)
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
        try:
            self._api.delete("Secret", self._name)
        except ComputeError:
            pass  # it goes with the Job


class Log(NamedTuple):
    """What was read of a container's log. `until` is the second of its last line."""

    lines: list[bytes]
    until: str | None
    is_whole: bool  # whether there was no more at that time


def _second(moment: str) -> str | None:
    """The second of a time as logs have it (RFC 3339, with nanoseconds, in UTC or not); None for what is none."""
    try:
        date = datetime.datetime.fromisoformat(f"{moment[:19]}+00:00")
    except ValueError:
        return None
    zone = moment[19:].lstrip(".0123456789")
    if zone not in ("Z", ""):
        sign, hours, minutes = zone[0], int(zone[1:3]), int(zone[4:6])
        date -= (1 if sign == "+" else -1) * datetime.timedelta(hours=hours, minutes=minutes)
    return date.strftime("%Y-%m-%dT%H:%M:%SZ")


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
