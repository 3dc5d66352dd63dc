"""`jobsdk compute check` of a Kubernetes compute: the server, the namespace, the rights, and whether it takes pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jobsdk.compute.base import Check
from jobsdk.compute.kubernetes import admission, objects
from jobsdk.compute.kubernetes.api import Api, Object, Refused, account_user, connect
from jobsdk.compute.kubernetes.lost import RIGHT
from jobsdk.errors import ComputeError
from jobsdk.job.command import command
from jobsdk.planning.plan import make_plan

#: What submitting needs: (verb, resource, group, subresource).
_RIGHTS = (
    ("create", "jobs", "batch", ""),
    ("patch", "jobs", "batch", ""),
    ("get", "jobs", "batch", ""),
    ("delete", "jobs", "batch", ""),
    ("create", "configmaps", "", ""),
    ("get", "configmaps", "", ""),
    ("create", "secrets", "", ""),
    ("delete", "secrets", "", ""),
    ("create", "services", "", ""),
    ("list", "pods", "", ""),
    ("get", "pods", "", "log"),
)
#: (verb, subresource of pods): what node 0's ServiceAccount needs to replace lost machines, in lost_pods.py.
_ACCOUNT_RIGHTS = (("get", ""), ("patch", "status"))


def run(settings: Mapping[str, Any]) -> list[Check]:
    """All that is well or not, up to what makes the rest pointless."""
    try:
        api = connect(settings.get("context"), settings.get("namespace"))
        version = api.version()
    except ComputeError as error:
        return [Check.failed("API server", error)]
    found = [Check("API server", True, f"{api.server}, {version}")]
    namespace = f"namespace {api.place.namespace}"
    try:
        if not api.has_namespace():
            fix = "set the compute's namespace, or have an administrator make it"
            return [*found, Check(namespace, False, "there is no such namespace", fix)]
    except ComputeError as error:
        return [*found, Check.failed(namespace, error)]
    plan = make_plan(command(command="true"), name="check")
    compiled = objects.objects(plan, settings, image=settings.get("image") or "check", code=None)
    return [
        *found,
        _rights(api, settings, compiled),
        _admission(api, compiled),
        _following(api, settings),
        _replacing(api),
        *_replacing_from_node_0(api, compiled),
    ]


def _rights(api: Api, settings: Mapping[str, Any], compiled: Sequence[Object]) -> Check:
    try:
        more = {
            ("create", api.plural(one["apiVersion"], one["kind"]), one["apiVersion"].rpartition("/")[0], "")
            for one in compiled
            if one["kind"] not in ("Job", "JobSet")
        }
    except ComputeError as error:
        return Check.failed("objects", error)
    missing = _missing(api, settings, (*_RIGHTS, *sorted(more - {*_RIGHTS})))
    fix = "have an administrator grant the role in docs/kubernetes.md" if missing else ""
    said = f"may not {', '.join(missing)}" if missing else "all that is needed"
    return Check(f"rights in namespace {api.place.namespace}", not missing, said, fix)


def _missing(api: Api, settings: Mapping[str, Any], rights: Iterable[tuple[str, str, str, str]]) -> list[str]:
    """The rights that this user does not have, in words."""
    missing = []
    for verb, resource, group, sub in rights:
        if resource == "jobs" and settings.get("jobset"):
            resource, group = "jobsets", "jobset.x-k8s.io"
        if not api.may(verb, resource, group, sub):
            missing.append(f"{verb} {resource}{'/' + sub if sub else ''}")
    return missing


def _following(api: Api, settings: Mapping[str, Any]) -> Check:
    """How a run is followed."""
    missing = _missing(api, settings, (("watch", "jobs", "batch", ""), ("watch", "pods", "", "")))
    if missing:
        return Check("following", True, f"without the right to {' and '.join(missing)} jobsdk asks every few seconds")
    return Check("following", True, "changes of a run come by watch")


def _admission(api: Api, compiled: Sequence[Object]) -> Check:
    """Whether the namespace would take a pod with the compute's settings."""
    try:
        is_tried = admission.check(api, compiled)
    except ComputeError as error:
        return Check.failed("admission", error)
    if is_tried:
        return Check("admission", True, "pods of this compute are admitted (a dry run)")
    return Check("admission", True, "not tried without the right to create pods: refusals show when a run waits")


def _replacing(api: Api) -> Check:
    """Whether pods of machines that are lost can be declared failed."""
    if api.may("patch", "pods", "", "status"):
        return Check("lost machines", True, "pods of lost machines are replaced")
    return Check("lost machines", True, f"without the right to {RIGHT} their pods wait until the cluster gives them up")


def _replacing_from_node_0(api: Api, compiled: Sequence[Object]) -> list[Check]:
    """Whether node 0 can do the same with its pod's token while no client follows; nothing without a token."""
    pod = objects.pod_template(compiled[-1])["spec"]
    if not pod.get("automountServiceAccountToken"):
        return []
    namespace, account = api.place.namespace, pod.get("serviceAccountName", "default")
    what = f"lost machines, by node 0 as ServiceAccount {account}"
    user = f"--as={account_user(namespace, account)} -n {namespace}"
    missing = []
    try:
        for verb, sub in _ACCOUNT_RIGHTS:
            if not api.may(verb, "pods", "", sub, account=account):
                missing.append(f"{verb} pods{'/' + sub if sub else ''}")
    except ComputeError as error:
        if not isinstance(error, Refused) or error.code != 403:
            return [Check.failed(what, error)]
        flags = [f"{verb} pods{' --subresource=' + sub if sub else ''}" for verb, sub in _ACCOUNT_RIGHTS]
        commands = " && ".join(f"kubectl auth can-i {one} {user}" for one in flags)
        found = "not checked without the right to create localsubjectaccessreviews.authorization.k8s.io"
        return [Check(what, True, f"{found}. An administrator can run: {commands}")]
    if missing:
        found = f"without the right to {' and '.join(missing)} a lost machine is not replaced while no client follows"
        return [Check(what, True, found)]
    return [Check(what, True, "pods of lost machines are replaced while no client follows")]
