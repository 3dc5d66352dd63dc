"""The settings of a Kubernetes compute: their names, their forms, what a job may say of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from jobsdk.compute.kubernetes import patches
from jobsdk.compute.kubernetes.gang import GANGS, workload
from jobsdk.compute.settings import Setting, mistakes_in, must_be
from jobsdk.findings import one_of, show

#: In the setting `objects`: the name of the run's own objects.
NAME = "${{name}}"

_POLICIES = ("Always", "IfNotPresent", "Never")
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_AMOUNT = re.compile(r"\d+(\.\d+)?(m|k|[MGTPE]|[KMGTPE]i|[eE]\d+)?")
_SIZE = re.compile(r"\d+(\.\d+)?(b|k|m|g|[KMGTPE]i?)?|\d+B")  # docker's, too
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_ZERO = re.compile(r"0+(\.0+)?\D*")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_FORMS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "text": ("a text", lambda value: isinstance(value, str) and bool(value)),
    "texts": ("a list of texts", lambda value: _all(value, str)),
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "number": ("a number of at least 0", lambda value: type(value) is int and value >= 0),
    "amount": ("an amount such as 8 or 64Gi", lambda value: _is_amount(value, _AMOUNT)),
    "size": ("an amount such as 64Gi", lambda value: _is_amount(value, _SIZE)),
    "name": ("a name of small letters, digits and -", lambda value: isinstance(value, str) and _fits(_NAME, value)),
    "policy": (", ".join(_POLICIES[:-1]) + f" or {_POLICIES[-1]}", lambda value: value in _POLICIES),
    "scalars": ("a mapping of texts", lambda value: _all_values(value, _is_scalar)),
    "variables": (
        "a mapping of texts, {secret: NAME, key: KEY} and {config_map: NAME, key: KEY}",
        lambda value: _all_values(value, lambda one: _is_scalar(one) or _is_reference(one)),
    ),
    "amounts": ("a mapping of amounts", lambda value: _all_values(value, lambda one: _is_amount(one, _AMOUNT))),
    "labels": (
        "a mapping of labels: at most 63 letters, digits, -, _ and .",
        lambda value: (
            _all_values(value, lambda one: _is_scalar(one) and _fits(_LABEL, text(one)))
            and all(_fits(_LABEL_KEY, str(key)) for key in value)
        ),
    ),
    "path": ("an absolute path", lambda value: isinstance(value, str) and value.startswith("/")),
    "label": ("the name of a label", lambda value: isinstance(value, str) and is_label_key(value)),
    "count": ("a number of at least 1", lambda value: type(value) is int and value >= 1),
    "operator": (one_of(_OPERATORS), lambda value: value in _OPERATORS),
    "access": (one_of(_ACCESS_MODES), lambda value: value in _ACCESS_MODES),
    "names": (
        "a mapping of names with small letters, digits and -, such as {gpu: two-gpus}",
        lambda value: (
            isinstance(value, Mapping) and all(_fits(_NAME, str(one)) for each in value.items() for one in each)
        ),
    ),
    "gang": (one_of([*GANGS]), lambda value: value in tuple(GANGS)),
    "gang_api": (one_of([*workload.APIS]), lambda value: value in tuple(workload.APIS)),
    "any": ("a value", lambda value: value is not None),
    "mapping": ("a mapping", lambda value: isinstance(value, Mapping)),
    "mappings": ("a list of mappings", lambda value: _all(value, Mapping)),
}


class Entry(NamedTuple):
    """What an entry of a setting has: fields with their forms, of which some are needed, and one of others."""

    fields: Mapping[str, str]
    needed: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    only_with: Mapping[str, str] = MappingProxyType({})  # field -> the field without which it has no meaning
    is_open: bool = False  # further fields are allowed, as in a pod


_SOURCE = {"claim": "text", "host_path": "path", "empty_dir": "any", "source": "mapping"}
_CONTAINER = Entry({"name": "name", "image": "text"}, ("name", "image"), is_open=True)
_ENTRIES = {
    "env_from": Entry({"secret": "text", "config_map": "text", "prefix": "text"}, one_of=("secret", "config_map")),
    "init_containers": _CONTAINER,
    "node_affinity": Entry({"key": "label", "operator": "operator", "values": "texts"}, ("key", "operator")),
    "objects": Entry(
        {"apiVersion": "text", "kind": "text", "metadata": "mapping"}, ("apiVersion", "kind", "metadata"), is_open=True
    ),
    "outputs_volume": Entry({"sub_path": "text", "here": "text", **_SOURCE}, one_of=tuple(_SOURCE)),
    "sidecars": _CONTAINER,
    "spread": Entry({"topology": "label", "max_skew": "count", "required": "flag"}, ("topology",)),
    "volumes": Entry(
        {
            "mount": "path", "read_only": "flag", "sub_path": "text", **_SOURCE, "size": "size",
            "storage_class": "text", "access_mode": "access", "per_node": "flag",
        },
        ("mount",),
        one_of=(*_SOURCE, "size"),
        only_with={"storage_class": "size", "access_mode": "size", "per_node": "size"},
    ),
}  # fmt: skip


def _setting(form: str, meaning: str, of_job: bool = True) -> Setting:
    return Setting(meaning, must_be(*_FORMS[form]), of_job)


SETTINGS: dict[str, Setting] = {
    "context": _setting("text", "the context of the kubeconfig; not given: the current one, or the pod's own", False),
    "namespace": _setting("name", "the namespace; not given: that of the context", False),
    "image": _setting("text", "the container image of jobs that name none"),
    "fetch_image": _setting("text", "the image of a container that fetches inputs from object stores before the job's"),
    "image_pull_policy": _setting("policy", "Always, IfNotPresent or Never"),
    "image_pull_secrets": _setting("texts", "names of Secrets with registry credentials"),
    "python": _setting("text", "the Python in the image that runs the bootstrap; not given: python3"),
    "jobset": _setting("flag", "submit a JobSet, not an Indexed Job"),
    "queue": _setting("text", "the Kueue LocalQueue; jobs are submitted suspended"),
    "workload_priority": _setting("text", "Kueue's WorkloadPriorityClass"),
    "slice_topology": _setting("label", "Kueue: the label that must be equal for all nodes of a slice"),
    "slice_size": _setting("count", "Kueue: the nodes of a slice"),
    "gang": _setting("gang", "what starts all pods of a job together: coscheduling, kai, volcano or workload"),
    "gang_queue": _setting("text", "the queue of Volcano or KAI; not given: their own default"),
    "gang_api": _setting("gang_api", "the version of scheduling.k8s.io for gang: workload; not given: v1beta1"),
    "gpu_resource": _setting("text", "the name of a GPU as a resource; not given: nvidia.com/gpu"),
    "gpus_per_node": _setting("number", "GPUs of a node; not given: processes x gpus_per_process"),
    "devices": _setting("amounts", "further devices of a node by resource name, such as {example.com/fpga: 1}"),
    "accelerator_label": _setting("text", "the label by which nodes say their GPU; not given: nvidia.com/gpu.product"),
    "accelerators": _setting("labels", "its values for the accelerator_type of scaling, by that; not given: the same"),
    "rdma": _setting("amounts", "RDMA devices of a node by resource name, such as {rdma/hca: 1}"),
    "cpu": _setting("amount", "processors of a node"),
    "memory": _setting("amount", "memory of a node, such as 64Gi"),
    "shm_size": _setting("size", "/dev/shm of a node, such as 16Gi; resources.shm_size of a job wins"),
    "node_selector": _setting("labels", "labels that a node must have"),
    "tolerations": _setting("mappings", "taints that are tolerated, as in a pod"),
    "toleration_seconds": _setting(
        "number", "how long pods stay on a machine that does not answer; not given: 30 with restarts, else 300"
    ),
    "exclusive": _setting("flag", "no two nodes of the job on one machine"),
    "topology": _setting("text", "the label of machines that must be equal for all nodes, such as a rack's"),
    "preferred_topology": _setting("label", "the label of machines that should be equal for all nodes"),
    "node_affinity": _setting("mappings", "what machines must have: a list of {key: LABEL, operator, values}"),
    "avoid_machines": _setting("texts", "machines that pods keep off, by the label kubernetes.io/hostname"),
    "spread": _setting("mappings", "how pods spread over machines: a list of {topology: LABEL, max_skew, required}"),
    "scheduler_name": _setting("text", "the scheduler; not given: Kubernetes' own"),
    "runtime_class": _setting("text", "the RuntimeClass"),
    "host_network": _setting("flag", "pods use their machine's network"),
    "claims": _setting("names", "devices by dynamic resource allocation: {name: ResourceClaimTemplate}"),
    "init_containers": _setting("mappings", "containers that run before the job's, as in a pod"),
    "sidecars": _setting("mappings", "containers that run beside the job's, as in a pod"),
    "priority_class": _setting("text", "the PriorityClass"),
    "service_account": _setting("text", "the ServiceAccount"),
    "service_account_token": _setting("flag", "pods get the ServiceAccount's token; not given: they do not"),
    "run_as_user": _setting("number", "the user's number that the image's processes run as; at least 1 is not root"),
    "run_as_non_root": _setting("flag", "refuse to run as root; for images whose own user is a number"),
    "read_only_root": _setting("flag", "the image's file system is read-only; /tmp is a folder of the pod"),
    "security_context": _setting("mapping", "further fields of the container's securityContext"),
    "pod_security_context": _setting("mapping", "further fields of the pod's securityContext"),
    "capabilities": _setting("texts", "Linux capabilities that the job needs, such as SYS_PTRACE; all are dropped"),
    "volumes": _setting(
        "mappings",
        "a list of {mount, claim | host_path | empty_dir | source | size, read_only, sub_path}; size: a claim that is "
        "created with the run, with storage_class, access_mode and per_node",
    ),
    "outputs_volume": _setting("mapping", "where outputs are kept: {claim | host_path | source, sub_path, here}"),
    "code_volume": _setting("mapping", "where large code is put: {here: a folder of this machine, path: it in a pod}"),
    "code_url": _setting("mapping", "where large code is put: {upload: an fsspec URL, fetch: where pods find it}"),
    "env": _setting(
        "variables",
        "further environment variables: texts, {secret, key} or {config_map, key}; those of a job win",
    ),
    "env_from": _setting("mappings", "all keys as variables: a list of {secret | config_map, prefix}"),
    "labels": _setting("labels", "further labels of the Job and its pods"),
    "annotations": _setting("scalars", "further annotations of the Job and its pods"),
    "ttl_seconds_after_finished": _setting("number", "when an ended Job is deleted; not given: after 3 days"),
    "objects": _setting("mappings", "manifests that are created with the run and deleted with it"),
    "patches": _setting(
        "mappings", "a list of {kind, patch}: strategic merge patches of Job, JobSet, Pod, Container, ..."
    ),
}


def _all(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(one, kind) for one in value)


def _all_values(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, Mapping) and all(map(fits, value.values()))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _is_reference(value: Any) -> bool:
    """Whether it is a key of a Secret or of a ConfigMap."""
    return (
        isinstance(value, Mapping)
        and sorted(value) in (["key", "secret"], ["config_map", "key"])
        and all(isinstance(one, str) and one for one in value.values())
    )


def _is_amount(value: Any, form: re.Pattern[str]) -> bool:
    return type(value) in (int, float, str) and _fits(form, str(value)) and not _fits(_ZERO, str(value))


def _fits(form: re.Pattern[str], value: str) -> bool:
    return form.fullmatch(value) is not None


def is_label(value: Any) -> bool:
    """Whether a label can have this value."""
    return isinstance(value, str) and bool(value) and _fits(_LABEL, value)


def is_label_key(name: str) -> bool:
    """Whether a label can have this name."""
    return _fits(_LABEL_KEY, name)


def is_resource(name: str) -> bool:
    """Whether nodes can have a device of this name, as example.com/fpga."""
    return "/" in name and _fits(_LABEL_KEY, name)


def text(value: Any) -> str:
    """What YAML reads as a flag or a number, as the text that Kubernetes wants."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def mistakes(settings: Mapping[str, Any], *, of_job: bool = False) -> Iterator[tuple[str, str]]:
    """What is wrong: (setting, words)."""
    wrong = list(mistakes_in(SETTINGS, settings, of_job=of_job))
    yield from wrong
    for name in settings:
        if name not in dict(wrong):
            yield from _inner_mistakes(name, settings[name])


def _inner_mistakes(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """What is wrong within a value of the right form."""
    if name in _ENTRIES:
        for entry in value if isinstance(value, list) else (value,):
            yield from ((name, f"{dict(entry)}: {why}") for why in _of_entry(entry, _ENTRIES[name]))
    if name == "volumes":
        mounts = [str(volume.get("mount")).rstrip("/") for volume in value]
        for mount in sorted({one for one in mounts if mounts.count(one) > 1}):
            yield name, f"mount two volumes at {mount}"
        for mount in mounts:
            if f"{mount}/".startswith("/jobsdk/"):
                yield name, f"cannot be mounted at {mount}: /jobsdk is for jobsdk itself"
    elif name == "objects":
        for number, one in enumerate(value):
            if NAME not in str((one.get("metadata") or {}).get("name")):
                yield name, f"[{number}]: metadata.name must contain {NAME}, which stands for the run's name"
            if one.get("kind") == "Secret":
                fix = "Fix: create the Secret beforehand, and name it in env, env_from or volumes"
                yield name, f"[{number}]: cannot be a Secret, whose values would be written to the run's folder. {fix}"
    elif name in ("code_volume", "code_url"):
        keys = ("here", "path") if name == "code_volume" else ("upload", "fetch")
        if sorted(value) != sorted(keys):
            yield name, f"must have the keys {keys[0]} and {keys[1]}"
    elif name == "patches":
        for patch in value:
            if sorted(patch) != ["kind", "patch"] or not isinstance(patch["patch"], Mapping):
                yield name, "each must be {kind: KIND, patch: {...}}"
            elif patch["kind"] not in patches.KINDS:
                yield name, f"there is no kind {patch['kind']!r}; there are {', '.join(patches.KINDS)}"
            else:
                yield from ((name, why) for why in patches.mistakes(patch["kind"], patch["patch"]))


def _of_entry(entry: Mapping[str, Any], of: Entry) -> Iterator[str]:
    """What is wrong with an entry of a setting."""
    unknown = [] if of.is_open else [key for key in entry if key not in of.fields]
    if unknown:
        yield f"there is no {unknown[0]!r}; there are {', '.join(of.fields)}"
    for field, form in of.fields.items():
        meaning, fits = _FORMS[form]
        if field in of.needed and (field not in entry or not fits(entry[field])):
            yield f"needs {field}, {meaning}"
        elif field in entry and not fits(entry[field]):
            yield f"{field} must be {meaning}, not {show(entry[field])}"
    if of.one_of and sum(source in entry for source in of.one_of) != 1:
        yield f"needs one of {', '.join(of.one_of)}"
    for field, other in of.only_with.items():
        if field in entry and other not in entry:
            yield f"{field} has a meaning only with {other}. Fix: set {other}, or leave out {field}"
