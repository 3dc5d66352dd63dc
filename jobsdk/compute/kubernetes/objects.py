"""plan + settings -> Kubernetes objects. Pure, and of one size for any number of nodes."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.detect import kubernetes
from jobsdk.bootstrap.spec import plan_file, ranks, stores
from jobsdk.bootstrap.spec import variables as variables_
from jobsdk.compute.kubernetes import kueue, patches, placing, volumes
from jobsdk.compute.kubernetes.api import Object
from jobsdk.compute.kubernetes.gang import GANGS
from jobsdk.compute.kubernetes.gang.group import Group
from jobsdk.compute.kubernetes.settings import NAME
from jobsdk.compute.kubernetes.settings import text as as_text
from jobsdk.compute.shipping import parcel

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan

Settings = Mapping[str, Any]

#: The label by which everything of a run is found; its value is the Job's name.
LABEL = "jobsdk/job"
#: On an object to which submitting adds data: the keys.
ADDED = "jobsdk/added-at-submission"
#: On the Job: the run's own name.
RUN = "jobsdk/run"
CODE_FILE, CODE_PLACE, CODE_HASH = "code.tar.gz", "code", "code-sha256"
CONTAINER = "main"
PARCEL_DIR, RUN_DIR = "/jobsdk/parcel", "/jobsdk/run"
#: Set by the Job controller on a pod that replaces others which the pod failure policy ignored.
_IGNORED_FAILURES = "metadata.annotations['batch.kubernetes.io/job-index-ignored-failure-count']"
_LONGEST_NAME = 45  # of a host or pod name's 63 characters: room for -node-0-12345-abcde
_TOLERATION_S = 30  # seconds
_TTL_S = 3 * 24 * 3600  # seconds
_MARGIN_S = 60.0  # seconds, for what the bootstrap does before and after the job's own time
_LAST_WORDS_S = 20.0  # seconds after the ranks' grace time: to write the report, and the rest of the logs
_GPU = "nvidia.com/gpu"


def dns_name(run: str) -> str:
    """A name for Kubernetes (RFC 1035) from a run's. Runs with names of our own making never share one."""
    text = re.sub("[^a-z0-9]+", "-", run.lower()).strip("-")
    if not text[:1].isalpha():
        text = f"run-{text}".strip("-")
    if text != run.replace("_", "-") or len(text) > _LONGEST_NAME:
        digest = hashlib.sha256(run.encode()).hexdigest()[:6]
        text = f"{text[: _LONGEST_NAME - 7].rstrip('-')}-{digest}"
    return text


def bootstrap_name() -> str:
    """The ConfigMap of this version's bootstrap."""
    return f"jobsdk-bootstrap-{hashlib.sha256(parcel.bootstrap()).hexdigest()[:12]}"


def objects(plan: Plan, settings: Settings, *, image: str, code: str | None) -> list[Object]:
    """All objects of a run, the Job or JobSet last. `code` is None, "inline", "volume" or "url"."""
    name = dns_name(plan["run"])
    labels = {"app.kubernetes.io/managed-by": "jobsdk", LABEL: name}
    secret_keys = [plan_file.TOKEN, *([plan_file.SECRETS] if plan.get("sealed") else [])]
    data_keys = [] if code is None else [CODE_HASH]
    if code is not None:  # a URL may be signed
        (secret_keys if code == "url" else data_keys).append(CODE_FILE if code == "inline" else CODE_PLACE)
    gang = GANGS[settings["gang"]].group(name, plan["nodes"], settings) if settings.get("gang") else Group()
    pod = _pod(plan, settings, name, image, code, gang)
    annotations = {**_texts(settings, "annotations"), **kueue.pod_annotations(settings), **gang.pod_annotations}
    template = {
        "metadata": {
            "labels": {**_texts(settings, "labels"), **gang.labels, **gang.pod_labels, **labels},
            **_some(annotations=annotations),
        },
        "spec": pod,
    }
    found = [
        _bootstrap(),
        _object("v1", "ConfigMap", name, labels, data_keys, data={"plan.json": json.dumps(plan)}),
        _object("v1", "Secret", name, labels, secret_keys, type="Opaque"),
    ]
    if not settings.get("jobset"):  # a JobSet brings its own
        # Pods that are not ready must be found: that they find each other is what makes them ready.
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL: name}}
        found.append(_object("v1", "Service", name, labels, spec=spec))
        pod["subdomain"] = name
    found += _of_the_run(settings, name, labels)
    if gang.kind:
        found.append(_object(gang.version, gang.kind, name, labels, spec=dict(gang.spec)))
    found.append(_workload(plan, settings, name, {**gang.labels, **labels}, template, gang.job_annotations))
    found = [_patched(one, settings.get("patches", [])) for one in found]
    _allow_escalation(pod_template(found[-1])["spec"]["containers"][0])
    return found


# -- the objects -------------------------------------------------------------------------------------------------------


def _object(version: str, kind: str, name: str, labels: Mapping[str, str], added: Any = (), **content: Any) -> Object:
    notes = {ADDED: " ".join(added)} if added else {}
    metadata = {"name": name, "labels": dict(labels), **_some(annotations=notes)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def _bootstrap() -> Object:
    labels = {"app.kubernetes.io/managed-by": "jobsdk"}
    return _object("v1", "ConfigMap", bootstrap_name(), labels, [parcel.BOOTSTRAP], immutable=True)


def _job_spec(plan: Plan, template: Object) -> Object:
    spec = {
        "completionMode": "Indexed",
        "completions": plan["nodes"],
        "parallelism": plan["nodes"],
        # Our own bootstrap ends all nodes when one fails, each with the culprit's code, and starts ranks again in their
        # pods. A pod that fails is not replaced, and does not have the Job delete the others with their last words.
        "backoffLimitPerIndex": 0,
        "template": template,
    }
    if is_restarted(plan):
        # A pod that the cluster takes away is replaced: its node comes back to the job.
        rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        spec["podFailurePolicy"] = {"rules": [rule]}
    return spec


def _workload(
    plan: Plan, settings: Settings, name: str, labels: Mapping[str, str], template: Object, notes: Mapping[str, str]
) -> Object:
    """The Job, or the JobSet of one Job."""
    queue, jobset, topology = settings.get("queue"), settings.get("jobset"), settings.get("topology")
    all_labels = {**_texts(settings, "labels"), **labels, **kueue.labels(settings)}
    annotations = {**_texts(settings, "annotations"), **notes, RUN: plan["run"]}
    spec = _job_spec(plan, template)
    if jobset:
        if topology and not queue:
            annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"] = topology
        spec = {
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": spec}}],
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
        }
    spec["ttlSecondsAfterFinished"] = settings.get("ttl_seconds_after_finished", _TTL_S)
    if queue:
        spec["suspend"] = True
    version, kind = ("jobset.x-k8s.io/v1alpha2", "JobSet") if jobset else ("batch/v1", "Job")
    found = _object(version, kind, name, all_labels, spec=spec)
    found["metadata"]["annotations"] = annotations
    return found


# -- the pod -----------------------------------------------------------------------------------------------------------


def _pod(plan: Plan, settings: Settings, name: str, image: str, code: str | None, gang: Group) -> Object:
    places, mounts = _volumes(settings, name, plan["run"])
    container = {
        "name": CONTAINER,
        "image": image,
        **_some(imagePullPolicy=settings.get("image_pull_policy")),
        "command": parcel.command(settings.get("python", "python3"), PARCEL_DIR, "node", RUN_DIR),
        "env": _environment(plan, settings, name, code),
        **_some(envFrom=[_all_keys(one) for one in settings.get("env_from", [])]),
        **_some(resources=_resources(plan, settings)),
        "volumeMounts": mounts,
        "securityContext": _container_security(settings),
    }
    pod: Object = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": bool(settings.get("service_account_token")),
        "securityContext": _pod_security(settings),
        "terminationGracePeriodSeconds": math.ceil(plan["grace_s"] + _LAST_WORDS_S),
        "containers": [container],
        "volumes": places,
        **_some(
            nodeSelector=_texts(settings, "node_selector"),
            tolerations=[*settings.get("tolerations", []), *_tolerations(plan, settings)],
            priorityClassName=settings.get("priority_class"),
            serviceAccountName=settings.get("service_account"),
            imagePullSecrets=[{"name": one} for one in settings.get("image_pull_secrets", [])],
            initContainers=[*_beside(settings, mounts), *_fetching(plan, settings, container)],
            schedulerName=settings.get("scheduler_name") or gang.scheduler,
            runtimeClassName=settings.get("runtime_class"),
            resourceClaims=[
                {"name": one, "resourceClaimTemplateName": template}
                for one, template in settings.get("claims", {}).items()
            ],
        ),
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if settings.get("host_network") else {}),
        **gang.pod_fields,
        **placing.rules(settings, {LABEL: name}, plan["nodes"]),
    }
    if plan["timeout_s"]:
        # Of each pod, not of the Job: the time that the Job waits for machines does not count.
        longest = plan["timeout_s"] + plan["rendezvous_timeout_s"] + plan["grace_s"] + _MARGIN_S
        pod["activeDeadlineSeconds"] = math.ceil(longest)
    return pod


def _fetching(plan: Plan, settings: Settings, container: Object) -> list[Object]:
    """What fetches the inputs where the image of the job cannot: it sees what the job's container does."""
    image = settings.get("fetch_image")
    if image is None or not (plan.get("code") or any(map(stores.is_moved, plan["inputs"].values()))):
        return []
    amounts = {key: str(settings[key]) for key in ("cpu", "memory") if settings.get(key)}
    command = parcel.command("python3", PARCEL_DIR, "fetch", RUN_DIR)
    own = {key: value for key, value in container.items() if key != "resources"}
    return [{**own, "name": "fetch", "image": image, "command": command, **_some(resources=_some(requests=amounts))}]


def _tolerations(plan: Plan, settings: Settings) -> list[Object]:
    """How long a pod stays on a machine that does not answer. Kubernetes' own 300 s are long for a job that waits."""
    seconds = settings.get("toleration_seconds", _TOLERATION_S if is_restarted(plan) else None)
    given = {one.get("key") for one in settings.get("tolerations", [])}
    keys = [f"node.kubernetes.io/{why}" for why in ("not-ready", "unreachable")]
    return [] if seconds is None else [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in keys if key not in given
    ]  # fmt: skip


def is_restarted(plan: Plan) -> bool:
    return bool(plan["restarts"]["max"] or plan["restarts"]["max_preemptions"])


def _pod_security(settings: Settings) -> Object:
    """As Kubernetes' Pod Security level `restricted` asks, but for the user: many images have no other than root.

    Source: kubernetes.io/docs/concepts/security/pod-security-standards.
    """
    user = settings.get("run_as_user")
    is_non_root = settings.get("run_as_non_root", True if user else None)
    # Files on a volume belong to that group, so that a user who is not root can write them.
    as_user = {"runAsUser": user, "runAsGroup": user, "fsGroup": user} if user is not None else {}
    own = {"seccompProfile": {"type": "RuntimeDefault"}, **as_user, **_some(runAsNonRoot=is_non_root)}
    return dict(patches.merged(own, settings.get("pod_security_context", {}), "Pod"))


def _container_security(settings: Settings) -> Object:
    # RDMA needs memory that stays where it is.
    needed = [*(["IPC_LOCK"] if settings.get("rdma") else []), *settings.get("capabilities", [])]
    own = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], **_some(add=needed)},
        **_some(readOnlyRootFilesystem=settings.get("read_only_root")),
    }
    return dict(patches.merged(own, settings.get("security_context", {}), "Container"))


def _beside(settings: Settings, mounts: list[Object]) -> list[Object]:
    """The init containers, then the sidecars: as restricted as the job's, with its volumes unless they name others."""
    given = [*settings.get("init_containers", ())]
    given += [{**one, "restartPolicy": "Always"} for one in settings.get("sidecars", ())]
    found = []
    for one in given:
        users = [dict(mount) for mount in mounts if mount["name"].startswith("volume-")]
        security = patches.merged(_container_security({}), one.get("securityContext", {}), "Container")
        found.append({**_some(volumeMounts=users), **one, "securityContext": security})
        _allow_escalation(found[-1])
    return found


def _environment(plan: Plan, settings: Settings, name: str, code: str | None) -> list[Object]:
    first = f"{name}-node-0-0" if settings.get("jobset") else f"{name}-0"
    ports = ",".join(map(str, kubernetes.PORTS))
    own = {variables_.PARCEL: PARCEL_DIR, variables_.CONTROL: f"{first}.{name} {ports}", variables_.RELAY: "1"}
    if is_restarted(plan):
        own[variables_.REPLACES] = "1"
    variables = [_variable(str(key), value) for key, value in {**settings.get("env", {}), **own}.items()]
    if variables_.REPLACES in own:
        variables.append({"name": variables_.REPLACED, "valueFrom": {"fieldRef": {"fieldPath": _IGNORED_FAILURES}}})
    if variables_.REPLACES in own and settings.get("service_account_token"):
        variables.append({"name": variables_.POD, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
    if code == "inline":
        variables.append({"name": variables_.CODE, "value": f"{PARCEL_DIR}/{CODE_FILE}"})
    elif code is not None:
        source = "secretKeyRef" if code == "url" else "configMapKeyRef"
        variables.append({"name": variables_.CODE, "valueFrom": {source: {"name": name, "key": CODE_PLACE}}})
    if code is not None:
        digest = {"configMapKeyRef": {"name": name, "key": CODE_HASH}}
        variables.append({"name": variables_.CODE_HASH, "valueFrom": digest})
    return variables


def _variable(name: str, value: Any) -> Object:
    if not isinstance(value, Mapping):
        return {"name": name, "value": as_text(value)}
    source, place = ("secretKeyRef", "secret") if "secret" in value else ("configMapKeyRef", "config_map")
    return {"name": name, "valueFrom": {source: {"name": value[place], "key": value["key"]}}}


def _all_keys(given: Mapping[str, Any]) -> Object:
    """All keys of a Secret or a ConfigMap as variables."""
    source, place = ("secretRef", "secret") if "secret" in given else ("configMapRef", "config_map")
    return {source: {"name": given[place]}, **_some(prefix=given.get("prefix"))}


def _resources(plan: Plan, settings: Settings) -> Object:
    gpus = settings.get("gpus_per_node")
    if gpus is None and plan["gpus_per_process"]:
        gpus = ranks.gpus_of(plan, len(distributions.of(plan).node_processes(0)))
    devices = {**_texts(settings, "devices"), **_texts(settings, "rdma")}
    if gpus and ("gpu_resource" in settings or not settings.get("claims")):
        devices[settings.get("gpu_resource", _GPU)] = str(gpus)
    amounts = {key: str(settings[key]) for key in ("cpu", "memory") if settings.get(key)}
    # A limit on processors only slows down; one on memory keeps a machine alive. Devices need a limit.
    limits = {**{key: value for key, value in amounts.items() if key == "memory"}, **devices}
    claims = [{"name": one} for one in settings.get("claims", ())]
    return _some(requests={**amounts, **devices}, limits=limits, claims=claims)


def _volumes(settings: Settings, name: str, run: str) -> tuple[list[Object], list[Object]]:
    """(volumes, mounts). The parcel is one folder of a ConfigMap, a Secret and the shared bootstrap."""
    sources = [*({"configMap": {"name": one}} for one in (bootstrap_name(), name)), {"secret": {"name": name}}]
    found: list[Object] = [{"name": "parcel", "projected": {"sources": sources}}, {"name": "run", "emptyDir": {}}]
    mounts: list[Object] = [
        {"name": "parcel", "mountPath": PARCEL_DIR, "readOnly": True},
        {"name": "run", "mountPath": RUN_DIR},
    ]
    if settings.get("shm_size"):
        size = volumes.quantity(settings["shm_size"])
        found.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    if settings.get("read_only_root"):
        found.append({"name": "tmp", "emptyDir": {}})
        mounts.append({"name": "tmp", "mountPath": "/tmp"})  # nosec B108 # in the pod
    for number, given in enumerate(settings.get("volumes", [])):
        own = f"volume-{number}"
        found.append({"name": own, **volumes.source(given, f"{name}-{own}")})
        more = _some(readOnly=given.get("read_only"), subPath=given.get("sub_path"))
        mounts.append({"name": own, "mountPath": given["mount"], **more})
    outputs = settings.get("outputs_volume")
    if outputs:
        found.append({"name": "outputs", **volumes.source(outputs)})
        mounts.append({"name": "outputs", "mountPath": f"{RUN_DIR}/outputs", "subPath": outputs_path(settings, run)})
    return found, mounts


def outputs_path(settings: Settings, run: str) -> str:
    """Where in `outputs_volume` a run's outputs are."""
    return f"{settings['outputs_volume'].get('sub_path', '').strip('/')}/{run}".lstrip("/")


def _of_the_run(settings: Settings, name: str, labels: Mapping[str, str]) -> list[Object]:
    """What is created with the run beside its own objects: volume claims, and the user's further objects."""
    claims = volumes.claims(settings, name)
    found = [_object("v1", "PersistentVolumeClaim", own, labels, spec=spec) for own, spec in claims.items()]
    for one in json.loads(json.dumps(settings.get("objects", []), default=str).replace(NAME, name)):
        one["metadata"]["labels"] = {**one["metadata"].get("labels", {}), **labels}
        found.append(one)
    return found


def _patched(one: Object, given: Iterable[Mapping[str, Any]]) -> Object:
    """An object after the user's patches for its kind, its pod and its container."""
    for each in given:
        kind, patch = each["kind"], each["patch"]
        if kind == one["kind"]:
            one = patches.merged(one, patch, kind)
        elif kind in ("Pod", "Container") and one["kind"] in ("Job", "JobSet"):
            template = pod_template(one)
            if kind == "Pod":
                template.update(patches.merged(template, patch, kind))
            else:
                template["spec"]["containers"][0] = patches.merged(template["spec"]["containers"][0], patch, kind)
    return one


def pod_template(job: Mapping[str, Any]) -> Object:
    """The template of the pods in a Job or a JobSet."""
    spec = job["spec"]
    if job["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    found: Object = spec["template"]
    return found


def _allow_escalation(container: Object) -> None:
    """The API refuses a container that is privileged, or has SYS_ADMIN, and must not escalate its privileges."""
    security = container.get("securityContext") or {}
    if security.get("privileged") or "SYS_ADMIN" in ((security.get("capabilities") or {}).get("add") or ()):
        security.pop("allowPrivilegeEscalation", None)


def _texts(settings: Settings, name: str) -> dict[str, str]:
    return {str(key): as_text(value) for key, value in settings.get(name, {}).items()}


def _some(**fields: Any) -> Object:
    """The fields that are given."""
    return {key: value for key, value in fields.items() if value not in (None, {}, [], "")}
