"""Whether the cluster takes a run's pods: asked before anything is created, and read from events while it waits.

The server admits the Job in any case; it refuses the pods, which the Job controller creates later and which nobody
watches. So a pod of the Job's template is sent as a dry run first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jobsdk.compute.kubernetes.api import Api, Gone, Object, Refused
from jobsdk.compute.kubernetes.objects import pod_template
from jobsdk.errors import ComputeError

#: Events of a Job or a pod that say why it does not start. (kube-controller-manager, kube-scheduler, kubelet.)
_REASONS = (
    "FailedCreate",
    "FailedScheduling",
    "FailedMount",
    "FailedAttachVolume",
    "FailedCreatePodSandBox",
    "Failed",
    "FailedResourceClaimCreation",
)
#: What refusals have in their words, and what to do then.
_FIXES = (
    ("runAsNonRoot", "set run_as_user of the compute to a number such as 1000, with an image that works for that user"),
    ("hostPath", "use a claim instead of host_path, or another namespace"),
    (
        "violates PodSecurity",
        "leave out what the namespace's Pod Security level does not allow, or use another namespace",
    ),
    ("exceeded quota", "wait for other jobs, ask for fewer or smaller nodes, or have the ResourceQuota raised"),
    ("failed quota", "set cpu and memory of the compute: the namespace's ResourceQuota asks for them"),
    ("service account", "create the ServiceAccount, or correct service_account of the compute"),
    ("PriorityClass", "correct priority_class of the compute: `kubectl get priorityclasses` shows them"),
    ("RuntimeClass", "correct runtime_class of the compute: `kubectl get runtimeclasses` shows them"),
    ("LimitRange", "ask for as much as the namespace's LimitRange allows"),
    ("per Container", "ask for as much as the namespace's LimitRange allows"),
)
_POD = re.compile(r'pods "[^"]*" is forbidden: ')


def check(api: Api, objects: Sequence[Object]) -> bool:
    """Whether a pod of the run could be tried. Raises ComputeError if the server refuses it, or lacks what it names.

    Without the right to create pods nothing is tried, and the Job's events tell the same a moment later.
    """
    *others, job = objects
    created = {(one["kind"], one["metadata"]["name"]) for one in others}
    for (kind, name), keys in _named(job).items():
        if (kind, name) in created:
            continue
        where = f"in namespace {api.place.namespace}"
        try:
            found = api.get(kind, name)
        except Gone:
            raise ComputeError(f"the {kind} {name} does not exist {where}. {_to_make(kind)}") from None
        except Refused:
            continue  # not everybody may read it
        present = {**found.get("data", {}), **found.get("binaryData", {})}
        for key in sorted(keys - present.keys()):
            fix = f"Fix: add it, or correct the key in the compute's settings: it has {', '.join(present) or 'none'}"
            raise ComputeError(f"the {kind} {name} {where} has no key {key}. {fix}")
    template = pod_template(job)
    name = f"{job['metadata']['name']}-dry-run"
    labels = template["metadata"].get("labels")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": template["spec"]}
    try:
        api.dry_run(pod)
    except Refused as error:
        words = error.words
        if error.code == 403 and 'cannot create resource "pods"' in words:
            return False
        if error.code not in (403, 404, 422):
            raise
        raise ComputeError(f"the cluster refuses the pods of this job: {plain(words)}. Fix: {fix_of(words)}") from None
    return True


def waits(api: Api, names: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Why objects (name -> kind) do not come up, by their latest warnings, each with whether pods are refused.

    Raises Refused without the right to read them.
    """
    for name, kind in names.items():
        selector = f"involvedObject.kind={kind},involvedObject.name={name},type=Warning"
        found = [one for one in api.list("Event", fieldSelector=selector) if one.get("reason") in _REASONS]
        latest = max(found, key=_moment, default=None)
        if latest is not None:
            yield f"{latest['reason']}: {plain(latest.get('message') or '')}", latest["reason"] == "FailedCreate"


def plain(words: str) -> str:
    """The server's words without the names of pods, which are others at each attempt."""
    return " ".join(_POD.sub("", words.removeprefix("Error creating: ")).split())


def fix_of(words: str) -> str:
    """What to do about a refusal."""
    return next((fix for part, fix in _FIXES if part in words), "see the compute's settings, its patches first")


def _moment(event: Object) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


def _named(job: Object) -> dict[tuple[str, str], set[str]]:
    """The objects that pods name and that must exist before, each with its keys: admission does not look at them."""
    spec = pod_template(job)["spec"]
    found: dict[tuple[str, str], set[str]] = {}

    def take(kind: str, source: Mapping[str, Any] | None, field: str = "name") -> None:
        if source and not source.get("optional"):
            found.setdefault((kind, source[field]), set()).update([source["key"]] if "key" in source else ())

    for volume in spec.get("volumes", ()):
        take("PersistentVolumeClaim", volume.get("persistentVolumeClaim"), "claimName")
        take("Secret", volume.get("secret"), "secretName")
        take("ConfigMap", volume.get("configMap"))
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for source in (*container.get("envFrom", ()), *(one.get("valueFrom", {}) for one in container.get("env", ()))):
            take("Secret", source.get("secretRef") or source.get("secretKeyRef"))
            take("ConfigMap", source.get("configMapRef") or source.get("configMapKeyRef"))
    for one in spec.get("imagePullSecrets", ()):
        take("Secret", one)
    return found


def _to_make(kind: str) -> str:
    return f"Fix: create it, or correct the name in the compute's settings: `kubectl get {kind.lower()}s` shows them"
