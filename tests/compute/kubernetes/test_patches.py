"""Patches merge lists as the API server does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from jobsdk.compute.kubernetes import objects, patches

_SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
#: The types that patches reach, by the fields of a Job's pods and of a Service.
_TYPES = {
    "io.k8s.api.core.v1.PodSpec", "io.k8s.api.core.v1.Container",
    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
}  # fmt: skip


def published(types: set[str], version: str = "1.37") -> dict[str, str]:
    """field -> merge key, from the schemas that Kubernetes publishes."""
    definitions = json.loads((_SCHEMAS / f"v{version}.0-local/_definitions.json").read_bytes())["$defs"]
    return {
        field: schema["x-kubernetes-patch-merge-key"]
        for name in types
        for field, schema in definitions[name]["properties"].items()
        if "x-kubernetes-patch-merge-key" in schema
    }


def test_the_keys_are_those_that_kubernetes_publishes() -> None:
    of_jobset = {"replicatedJobs": "name"}
    assert published(_TYPES) | of_jobset == patches.MERGE_KEYS
    assert published({"io.k8s.api.core.v1.ServiceSpec"}) == patches.MERGE_KEYS_OF_SERVICE


def container() -> dict[str, Any]:
    return {
        "name": "main", "image": "i", "command": ["python3", "-m", "x"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "volumeMounts": [{"name": "parcel", "mountPath": "/jobsdk/parcel", "readOnly": True}],
        "ports": [{"containerPort": 80, "name": "http"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("patch", "field", "value"),
    [
        ({"image": "j"}, "image", "j"),
        ({"image": None}, "image", None),
        ({"command": ["sh"]}, "command", ["sh"]),
        (
            {"env": [{"name": "C", "value": "3"}, {"name": "A", "value": "9"}]},
            "env",
            [{"name": "A", "value": "9"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
        ),
        ({"env": [{"name": "A", "$patch": "delete"}]}, "env", [{"name": "B", "value": "2"}]),
        (
            {"env": [{"name": "A", "$patch": "replace", "valueFrom": {}}]},
            "env",
            [{"name": "A", "valueFrom": {}}, {"name": "B", "value": "2"}],
        ),
        ({"env": [{"$patch": "replace"}, {"name": "C", "value": "3"}]}, "env", [{"name": "C", "value": "3"}]),
        (
            {"volumeMounts": [{"mountPath": "/jobsdk/parcel", "subPath": "x"}]},
            "volumeMounts",
            [{"name": "parcel", "mountPath": "/jobsdk/parcel", "readOnly": True, "subPath": "x"}],
        ),
        (
            {"ports": [{"containerPort": 81}]},
            "ports",
            [{"containerPort": 80, "name": "http"}, {"containerPort": 81}],
        ),
        ({"resources": {"limits": {"x/y": "1"}}}, "resources", {"limits": {"x/y": "1"}}),
    ],
)
def test_merging(patch: dict[str, Any], field: str, value: Any) -> None:
    assert patches.merged(container(), patch, "Container").get(field) == value


def test_a_list_without_a_key_is_replaced() -> None:
    pod = {"tolerations": [{"key": "a"}], "volumes": [{"name": "run", "emptyDir": {}}]}
    patch = {"tolerations": [{"key": "b"}], "volumes": [{"name": "more", "emptyDir": {}}]}
    found = patches.merged(pod, patch, "Pod")
    assert found == {"tolerations": [{"key": "b"}], "volumes": [*pod["volumes"], {"name": "more", "emptyDir": {}}]}
    assert pod["tolerations"] == [{"key": "a"}]


def test_a_service_merges_ports_by_their_number() -> None:
    found = patches.merged({"spec": {"ports": [{"port": 1}]}}, {"spec": {"ports": [{"port": 2}]}}, "Service")
    assert found == {"spec": {"ports": [{"port": 1}, {"port": 2}]}}


def test_a_map_can_be_replaced() -> None:
    patch = {"spec": {"$patch": "replace", "c": 3}}
    assert patches.merged({"spec": {"a": 1, "b": {"x": 1}}}, patch, "Job") == {"spec": {"c": 3}}


@pytest.mark.parametrize(
    ("kind", "patch", "words"),
    [
        ("Container", {"env": [{"value": "x"}]}, "env[0] needs name, by which Kubernetes merges this list"),
        ("Pod", {"spec": {"containers": ["x"]}}, "spec.containers[0] needs name"),
        ("Container", {"volumeMounts": [{"name": "x"}]}, "volumeMounts[0] needs mountPath"),
        ("Service", {"spec": {"ports": [{"containerPort": 1}]}}, "spec.ports[0] needs port"),
        (
            "Container", {"env": [{"name": "A", "$patch": "remove"}]},
            "env[0].$patch must be delete, merge or replace, not 'remove'",
        ),
        (
            "Pod", {"spec": {"$setElementOrder/volumes": []}},
            "spec.$setElementOrder/volumes is not supported. Fix: use $patch: delete | merge | replace",
        ),
    ],
)  # fmt: skip
def test_mistakes(kind: str, patch: dict[str, Any], words: str) -> None:
    (found,) = patches.mistakes(kind, patch)
    assert found.startswith(words)


def test_a_patch_of_a_pod_adds_to_its_container() -> None:
    job = {"kind": "Job", "spec": {"template": {"metadata": {}, "spec": {"containers": [container()]}}}}
    patch = {"spec": {"containers": [{"name": "main", "env": [{"name": "C", "value": "3"}]}, {"name": "two"}]}}
    assert list(patches.mistakes("Pod", patch)) == []
    template = patches.merged(objects.pod_template(job), patch, "Pod")
    main, two = template["spec"]["containers"]
    assert [one["name"] for one in main["env"]] == ["A", "B", "C"]
    assert two == {"name": "two"}
