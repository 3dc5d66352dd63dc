"""Strategic merge patches: lists merge by the keys that Kubernetes publishes for them (`x-kubernetes-patch-merge-key`).

`null` removes a field. In an element of such a list, `$patch: delete` removes the element, and `$patch: replace`
replaces it. An element with nothing but `$patch: replace` replaces the list. All other lists are replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: What patches may be for. Pod and Container are parts of the Job, or of the JobSet.
KINDS = ("ConfigMap", "Container", "Job", "JobSet", "Pod", "Secret", "Service")
#: field of a pod, a container, an object's metadata or a JobSet -> the key of its elements
MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "evictionResponders": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "replicatedJobs": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
#: What differs in a Service.
MERGE_KEYS_OF_SERVICE = {"ports": "port"}
_DIRECTIVES = ("delete", "merge", "replace")


def merged(target: Any, patch: Any, kind: str) -> Any:
    """`target`, an object or a part of one, after a strategic merge patch for its kind."""
    return _merged(target, patch, _keys(kind))


def mistakes(kind: str, patch: Any, where: str = "") -> Iterator[str]:
    """What is wrong in a patch, each with its place."""
    if not isinstance(patch, Mapping):
        return
    keys = _keys(kind)
    for field, value in patch.items():
        place = f"{where}.{field}".lstrip(".")
        if field == "$patch" and value not in _DIRECTIVES:
            yield f"{place} must be {', '.join(_DIRECTIVES[:-1])} or {_DIRECTIVES[-1]}, not {value!r}"
        elif str(field).startswith("$") and field != "$patch":
            yield f"{place} is not supported. Fix: use $patch: {' | '.join(_DIRECTIVES)}"
        elif isinstance(value, list) and field in keys:
            for number, one in enumerate(value):
                is_whole = isinstance(one, Mapping) and (keys[field] in one or dict(one) == {"$patch": "replace"})
                if not is_whole:
                    yield f"{place}[{number}] needs {keys[field]}, by which Kubernetes merges this list"
                yield from mistakes(kind, one, f"{place}[{number}]")
        else:
            yield from mistakes(kind, value, place)


def _merged(target: Any, patch: Any, keys: Mapping[str, str]) -> Any:
    if not isinstance(patch, Mapping):
        return patch
    is_new = patch.get("$patch") == "replace" or not isinstance(target, Mapping)
    result = {} if is_new else dict(target)
    for field, value in patch.items():
        if field == "$patch":
            continue
        if value is None:
            result.pop(field, None)
        elif isinstance(value, list) and field in keys:
            result[field] = _merged_list(result.get(field) or [], value, field, keys)
        else:
            result[field] = _merged(result.get(field), value, keys)
    return result


def _keys(kind: str) -> Mapping[str, str]:
    return {**MERGE_KEYS, **MERGE_KEYS_OF_SERVICE} if kind == "Service" else MERGE_KEYS


def _merged_list(target: list[Any], patch: list[Any], field: str, keys: Mapping[str, str]) -> list[Any]:
    key = keys[field]
    is_replaced = {"$patch": "replace"} in patch
    found = {} if is_replaced else {one[key]: one for one in target}
    for one in patch:
        if one.get("$patch") == "delete":
            found.pop(one[key], None)
        elif key in one:
            found[one[key]] = _merged(found.get(one[key]), one, keys)
    return list(found.values())
