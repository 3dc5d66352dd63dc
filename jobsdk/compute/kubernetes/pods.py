"""What a pod's state says: whether it runs, what it waits for, how it ended."""

from __future__ import annotations

import datetime
import time

from jobsdk.compute.ends import EngineEnd
from jobsdk.compute.kubernetes.api import Object
from jobsdk.compute.kubernetes.objects import CONTAINER

_INDEX = "batch.kubernetes.io/job-completion-index"
_FAILED_BEFORE = "InitContainerFailed"  # our own reason
#: Why a container that waits will not start by itself.
HOPELESS = ("InvalidImageName", "ErrImageNeverPull", _FAILED_BEFORE)
STUCK = (*HOPELESS, "ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError", "CreateContainerError")
LATE_S = 2.0  # seconds after the end of a container in which its last lines may come
_OLD_S = 60.0  # seconds since an end, by a clock that may be a little fast, after which nothing comes


def _seconds_since(moment: str) -> float:
    then = datetime.datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return (datetime.datetime.now(datetime.timezone.utc) - then).total_seconds()


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

    @property
    def is_unreachable(self) -> bool:
        """Whether its machine fell silent: the control plane says "not ready", its kubelet last said the opposite."""
        statuses = self.status.get("containerStatuses") or ()
        is_ready = all(one.get("ready") for one in statuses)
        return "running" in self.container and is_ready and self.condition("Ready", "False") is not None

    @property
    def age(self) -> float:
        """Seconds since it was created, by this machine's clock."""
        return _seconds_since(self.created)

    def is_settled(self, seen: float) -> bool:
        """Whether no more lines can come, after the time at which it was first seen to be over."""
        finished: str | None = (self.container.get("terminated") or {}).get("finishedAt")
        is_old = finished is not None and _seconds_since(finished) > _OLD_S
        return is_old or time.time() - seen >= LATE_S

    def condition(self, kind: str, value: str) -> Object | None:
        """Its condition of that type, if it has that value."""
        found = (one for one in self.status.get("conditions") or () if one["type"] == kind and one["status"] == value)
        return next(found, None)

    def waits_for(self) -> tuple[str, str] | None:
        """(reason, words) of a pod that does not run yet and says why."""
        waiting = self.container.get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason in STUCK:
            return reason, f"{reason}: {waiting.get('message') or 'no reason is given'}"
        for one in self.status.get("initContainerStatuses") or ():
            waiting = one.get("state", {}).get("waiting") or {}
            if waiting.get("reason") in STUCK:
                words = f"{waiting['reason']}: {waiting.get('message') or 'no reason is given'}"
                return waiting["reason"], f"container {one['name']}: {words}"
        failed = self._failed_before()
        if failed is not None:
            return _FAILED_BEFORE, failed
        unscheduled = self.condition("PodScheduled", "False")
        if unscheduled is not None:
            return "Unschedulable", str(unscheduled.get("message") or unscheduled.get("reason"))
        return None

    def _failed_before(self) -> str | None:
        """The failure of an init container, because of which the job's own container was not started."""
        for one in (self.status.get("initContainerStatuses") or ()) if self.is_over and not self.has_log else ():
            ended = one.get("state", {}).get("terminated") or {}
            if ended.get("exitCode"):
                why = f": {ended['message']}" if ended.get("message") else ""
                return f"the init container {one['name']} ended with code {ended['exitCode']}{why}"
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
        failed = self._failed_before()
        if failed is not None:
            return EngineEnd.failed(f"{who} cannot start: {failed}", self.node)
        code = ended.get("exitCode", 0)
        if code:
            why = ended.get("message") or (ended.get("reason") if ended.get("reason") != "Error" else None)
            said = ": ".join(text for text in (why, words) if text)
            text = f"the container of {who} ended with code {code}{': ' + said if said else ''}"
            return EngineEnd.failed(text, exit_code=int(code))
        return None
