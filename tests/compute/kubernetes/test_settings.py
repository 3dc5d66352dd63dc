"""Each setting: what it changes in the objects of a job, in a golden file, and the words of its mistakes.

A golden file lists the changed fields, by their paths. JOBSDK_WRITE_GOLDEN=1 writes the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from jobsdk.compute.kubernetes.patches import MERGE_KEYS
from jobsdk.compute.kubernetes.settings import SETTINGS
from jobsdk.errors import JobsdkError, ValidationError
from tests.compute.kubernetes import test_objects
from tests.compute.kubernetes.conftest import Configure
from tests.compute.kubernetes.server import ApiServer
from tests.compute.kubernetes.test_objects import EVERYTHING, check

GOLDEN = Path(__file__).parent / "golden"


VERSIONS = tuple(f"1.{minor}" for minor in range(29, 38))


class Case(NamedTuple):
    settings: dict[str, Any]
    versions: tuple[str, ...] = VERSIONS  # of Kubernetes, by whose schemas it passes


CASES: dict[str, Case] = {
    "patches": Case({
        "patches": [
            {"kind": "Container", "patch": {"env": [{"name": "MORE", "value": "1"}]}},
            {"kind": "Pod", "patch": {"spec": {"containers": [{"name": "proxy", "image": "p"}]}}},
        ],
    }),
    "env": Case({
        "env": {
            "MODE": {"config_map": "modes", "key": "mode"}, "PLAIN": "x", "TOKEN": {"secret": "hub", "key": "token"},
        },
    }),
    "env_from": Case({"env_from": [{"secret": "hub", "prefix": "HUB_"}, {"config_map": "modes"}]}),
    "init_containers": Case({
        "init_containers": [
            {"name": "warm", "image": "warm:1", "command": ["warm", "/data"]},
            {"name": "tune", "image": "tune:1", "securityContext": {"privileged": True}, "volumeMounts": []},
        ],
        "volumes": [{"mount": "/data", "claim": "datasets"}],
    }),
    "sidecars": Case({"sidecars": [{"name": "proxy", "image": "proxy:1", "env": [{"name": "A", "value": "1"}]}]}),
    "runtime_class": Case({"runtime_class": "nvidia"}),
    "host_network": Case({"host_network": True}),
    "security_context": Case({"security_context": {"procMount": "Unmasked", "capabilities": {"add": ["SYS_NICE"]}}}),
    "pod_security_context": Case({"pod_security_context": {"supplementalGroups": [44], "fsGroup": 7}}),
    "node_affinity": Case({
        "node_affinity": [{"key": "pool", "operator": "In", "values": ["a"]}, {"key": "gpu", "operator": "Exists"}],
    }),
    "avoid_machines": Case({
        "avoid_machines": ["n7", "n3"], "node_affinity": [{"key": "pool", "operator": "In", "values": ["a"]}],
    }),
    "spread": Case({
        "spread": [{"topology": "topology.kubernetes.io/zone"}, {"topology": "rack", "max_skew": 2, "required": False}],
    }),
    "scheduler_name": Case({"scheduler_name": "packing"}),
    "claims": Case({"claims": {"gpu": "two-gpus"}, "gpus_per_node": 2}, VERSIONS[2:]),
    "volumes": Case({
        "volumes": [
            {"mount": "/scratch", "size": "100Gi", "storage_class": "fast"},
            {"mount": "/cache", "size": "50g", "per_node": True},
        ],
    }),
    "objects": Case({
        "objects": [{
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "${{name}}-only"},
            "spec": {"podSelector": {"matchLabels": {"jobsdk/job": "${{name}}"}}, "policyTypes": ["Egress"]},
        }],
    }),
    "gang-volcano": Case({"gang": "volcano", "gang_queue": "research", "priority_class": "high"}),
    "gang-coscheduling": Case({"gang": "coscheduling", "scheduler_name": "mine"}),
    "gang-kai": Case({"gang": "kai", "gang_queue": "research"}),
    "gang-workload": Case({"gang": "workload", "priority_class": "high"}, ("1.37",)),
    "gang-workload-1.36": Case({"gang": "workload", "gang_api": "v1alpha2"}, ("1.36",)),
    "gang-workload-1.35": Case({"gang": "workload", "gang_api": "v1alpha1"}, ("1.35",)),
    "kueue": Case({"queue": "team", "preferred_topology": "block", "workload_priority": "urgent"}),
    "kueue-slices": Case({"queue": "team", "topology": "block", "slice_topology": "rack", "slice_size": 2}),
    "preferred_topology": Case({"preferred_topology": "rack"}),
}  # fmt: skip

#: The settings whose effect other tests look at.
ELSEWHERE = {
    *EVERYTHING, "accelerator_label", "accelerators", "capabilities", "code_url", "code_volume", "context", "devices",
    "fetch_image", "image", "jobset", "python", "queue", "read_only_root", "run_as_non_root", "run_as_user",
    "service_account_token", "toleration_seconds",
}  # fmt: skip


def compiled(configure: Configure, server: ApiServer, settings: dict[str, Any]) -> list[dict[str, Any]]:
    configure(server, **{"image": "registry.example/train:1", **settings})
    found: list[dict[str, Any]] = test_objects.compiled().spec["objects"]
    return found


def changes(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, new value) of what differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            if key not in after:
                yield f"{path}/{key}", None
            else:
                yield from changes(before.get(key), after[key], f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and (key := MERGE_KEYS.get(path.rpartition("/")[2])):
        yield from changes({one[key]: one for one in before}, {one[key]: one for one in after}, path)
    elif before != after:
        yield path, after


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, configure: Configure, server: ApiServer) -> None:
    case = CASES[name]
    plain = {one["kind"]: one for one in compiled(configure, server, {})}
    found = compiled(configure, server, case.settings)
    assert len({one["kind"] for one in found}) == len(found) - 1  # the ConfigMap of the bootstrap
    check(found, case.versions)
    text = yaml.safe_dump(dict(changes(plain, {one["kind"]: one for one in found})), sort_keys=True, width=120)
    path = GOLDEN / f"{name}.yml"
    if os.environ.get("JOBSDK_WRITE_GOLDEN") == "1":
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(("gang-kai", "gang-workload"))])
def test_a_jobset_passes_the_schemas_as_well(name: str, configure: Configure, server: ApiServer) -> None:
    case = CASES[name]
    check(compiled(configure, server, {"jobset": True, **case.settings}), case.versions[-1:])


def test_every_setting_is_tested() -> None:
    assert {name for case in CASES.values() for name in case.settings} | ELSEWHERE == set(SETTINGS)
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(CASES)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"patches": [{"kind": "Container", "patch": {"env": [{"value": "x"}]}}]},
            "patches env[0] needs name, by which Kubernetes merges this list",
        ),
        ({"env": {"A": {"secret": "s"}}}, "env must be a mapping of texts, {secret: NAME, key: KEY} and {config_map"),
        ({"env": {"A": {"secret": "s", "config_map": "c", "key": "k"}}}, "env must be a mapping of texts, {secret"),
        ({"env_from": [{"prefix": "X_"}]}, "env_from {'prefix': 'X_'}: needs one of secret, config_map"),
        ({"env_from": [{"secret": "s", "prefx": "X_"}]}, "there is no 'prefx'; there are secret, config_map, prefix"),
        ({"init_containers": [{"name": "x"}]}, "init_containers {'name': 'x'}: needs image, a text"),
        ({"sidecars": [{"image": "x"}]}, "sidecars {'image': 'x'}: needs name, a name of small letters, digits and -"),
        ({"runtime_class": 7}, "runtime_class must be a text, not 7"),
        ({"host_network": "yes"}, "host_network must be true or false, not 'yes'"),
        ({"security_context": []}, "security_context must be a mapping"),
        ({"pod_security_context": "x"}, "pod_security_context must be a mapping, not 'x'"),
        ({"node_affinity": [{"key": "a", "operator": "Is"}]}, "needs operator, In, NotIn, Exists, DoesNotExist, Gt or"),
        ({"avoid_machines": "n7"}, "avoid_machines must be a list of texts, not 'n7'"),
        ({"spread": [{"topology": "rack", "max_skew": 0}]}, "max_skew must be a number of at least 1, not 0"),
        ({"spread": [{"max_skew": 1}]}, "spread {'max_skew': 1}: needs topology, the name of a label"),
        ({"scheduler_name": ""}, "scheduler_name must be a text"),
        ({"claims": {"gpu": "Two GPUs"}}, "claims must be a mapping of names"),
        (
            {"volumes": [{"mount": "/x", "size": "1Gi", "access_mode": "RWX"}]},
            "access_mode must be ReadWriteOnce, Read",
        ),
        ({"volumes": [{"mount": "/x", "claim": "c", "per_node": True}]}, "per_node has a meaning only with size"),
        (
            {"objects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fixed"}}]},
            "objects [0]: metadata.name must contain ${{name}}, which stands for the run's name",
        ),
        (
            {"objects": [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "${{name}}-x"}}]},
            "objects [0]: cannot be a Secret, whose values would be written to the run's folder. Fix: create the",
        ),
        ({"objects": [{"kind": "ConfigMap"}]}, "objects {'kind': 'ConfigMap'}: needs apiVersion, a text"),
        ({"gang": "slurm"}, "gang must be coscheduling, kai, volcano or workload, not 'slurm'"),
        ({"gang": ["kai"]}, "gang must be coscheduling, kai, volcano or workload, not a list"),
        ({"gang_api": "v1"}, "gang_api must be v1beta1, v1alpha2 or v1alpha1, not 'v1'"),
        ({"gang": "coscheduling", "gang_queue": "q"}, "gang_queue of the compute cluster has a meaning only with gang"),
        ({"gang": "kai", "gang_api": "v1beta1"}, "gang_api of the compute cluster has a meaning only with gang: workl"),
        ({"gang": "kai", "jobset": True}, "kai does not start the pods of a JobSet together. Fix: leave out jobset"),
        ({"preferred_topology": "a b"}, "preferred_topology must be the name of a label"),
        ({"topology": "a", "preferred_topology": "b"}, "excludes topology. Fix: leave out one of them"),
        (
            {"workload_priority": "p"},
            "workload_priority of the compute cluster has a meaning only with queue. Fix: set",
        ),
        ({"queue": "q", "slice_size": 2}, "slice_size of the compute cluster has a meaning only with slice_topology"),
        (
            {"queue": "q", "slice_topology": "r"},
            "slice_topology of the compute cluster has a meaning only with slice_s",
        ),
        (
            {"slice_topology": "r", "slice_size": 2},
            "slice_topology of the compute cluster has a meaning only with queu",
        ),
        (
            {"queue": "q", "slice_topology": "r", "slice_size": 3},
            "slice_size of the compute cluster is 3, but instance_count of the job is 2. Fix: set slice_size to at",
        ),
        (
            {"annotations": {"kueue.x-k8s.io/job-min-parallelism": 1}},
            "a job starts with all its nodes, and would wait for the others. Fix: leave it out",
        ),
        ({"env_from": {"secret": "s"}}, "env_from must be a list of mappings"),
    ],
)
def test_mistakes(settings: dict[str, Any], words: str, configure: Configure, server: ApiServer) -> None:
    with pytest.raises(JobsdkError) as caught:
        compiled(configure, server, settings)
    assert words in str(caught.value)


def test_a_wrong_setting_of_a_job_is_one_mistake(configure: Configure, server: ApiServer) -> None:
    configure(server, image="i")
    resources = {"instance_count": 2, "properties": {"kubernetes": {"gang": "slurm", "slice_size": "two"}}}
    with pytest.raises(ValidationError) as caught:
        test_objects.compiled(instance_count=None, resources=resources)
    assert "gang: must be coscheduling, kai, volcano or workload" in str(caught.value)
    assert "slice_size: must be a number of at least 1" in str(caught.value)


def test_what_a_job_sets_is_judged_with_what_its_compute_sets(configure: Configure, server: ApiServer) -> None:
    configure(server, image="i", gang="kai")
    resources = {"instance_count": 2, "properties": {"kubernetes": {"gang_queue": "mine"}}}
    found = test_objects.compiled(instance_count=None, resources=resources).spec["objects"][-1]
    assert found["metadata"]["labels"]["kai.scheduler/queue"] == "mine"
