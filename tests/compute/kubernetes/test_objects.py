"""What jobs are compiled to, against the published schemas and golden files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobsdk import Input, MLClient, Output, PyTorchDistribution, command
from jobsdk.client.operations import Submission
from jobsdk.compute.kubernetes import objects as made
from jobsdk.errors import ComputeError, ValidationError
from jobsdk.job.command import CommandJob
from tests.compute.kubernetes import schemas
from tests.compute.kubernetes.conftest import Configure
from tests.compute.kubernetes.server import ApiServer
from tests.compute.test_golden import DISTRIBUTIONS, GOLDEN

#: The first that knows backoffLimitPerIndex without a feature gate, some between, and the latest.
VERSIONS = ("1.29", "1.31", "1.33", "1.35", "1.37")

EVERYTHING: dict[str, Any] = {
    "namespace": "research",
    "image_pull_policy": "IfNotPresent",
    "image_pull_secrets": ["registry"],
    "gpus_per_node": 8,
    "gpu_resource": "amd.com/gpu",
    "rdma": {"rdma/hca": 1},
    "cpu": 96,
    "memory": "900Gi",
    "shm_size": "64Gi",
    "node_selector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "exclusive": True,
    "topology": "topology.kubernetes.io/rack",
    "priority_class": "high",
    "service_account": "trainer",
    "volumes": [
        {"mount": "/data", "claim": "datasets", "read_only": True},
        {"mount": "/scratch", "empty_dir": "100g"},
        {"mount": "/opt/x", "host_path": "/opt/x"},
        {"mount": "/nfs", "source": {"nfs": {"server": "nas", "path": "/x"}}, "sub_path": "me"},
    ],
    "outputs_volume": {"claim": "results", "sub_path": "runs"},
    "env": {"NCCL_DEBUG": "INFO", "NUMBER": 1},
    "labels": {"team": "vision"},
    "annotations": {"sidecar.istio.io/inject": "false"},
    "ttl_seconds_after_finished": 600,
    "patches": [
        {"kind": "Job", "patch": {"spec": {"template": {"spec": {"hostIPC": True}}}}},
        {"kind": "Pod", "patch": {"spec": {"schedulerName": "other", "enableServiceLinks": None}}},
        {"kind": "Container", "patch": {"securityContext": {"privileged": True}}},
        {"kind": "Service", "patch": {"metadata": {"labels": {"x": "y"}}}},
    ],
}


@pytest.fixture
def compute(configure: Configure, server: ApiServer) -> Any:
    def make(**settings: Any) -> None:
        configure(server, **{"image": "registry.example/train:1", **settings})

    return make


def job(**fields: Any) -> CommandJob:
    given: dict[str, Any] = {
        "command": "hostname", "compute": "cluster", "instance_count": 2,
        "distribution": PyTorchDistribution(process_count_per_instance=4), **fields,
    }  # fmt: skip
    return command(**given)


def compiled(**fields: Any) -> Submission:
    return MLClient().jobs.compile(job(**fields), name="able_acorn_1234567890")


def objects(**fields: Any) -> dict[str, Any]:
    return {one["kind"]: one for one in compiled(**fields).spec["objects"]}


def pod(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = made.pod_template(compiled(**fields).spec["objects"][-1])["spec"]
    return found


def check(all_objects: list[dict[str, Any]], versions: tuple[str, ...] = VERSIONS) -> None:
    for one in all_objects:
        parts = [one]
        if one["kind"] == "JobSet":
            spec = one["spec"]["replicatedJobs"][0]["template"]["spec"]
            parts.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec})
        for part in parts:
            for version in versions:
                assert schemas.mistakes(part, version) == []


@pytest.mark.parametrize(
    "settings",
    [{}, EVERYTHING, {"jobset": True}, {**EVERYTHING, "jobset": True}, {"queue": "team", **EVERYTHING}],
    ids=["least", "everything", "jobset", "jobset-everything", "queue"],
)
def test_all_of_it_passes_the_schemas(settings: dict[str, Any], compute: Any) -> None:
    compute(**settings)
    check(compiled(timeout=3600, max_restarts=2, secrets=["MINE"], environment_variables={"MINE": "x"}).spec["objects"])


def test_the_check_finds_mistakes(compute: Any) -> None:
    for jobset, kind in ((False, "Job"), (True, "JobSet")):
        compute(jobset=jobset, patches=[{"kind": kind, "patch": {"spec": {"nonsense": 1}}}])
        with pytest.raises(AssertionError, match="nonsense"):
            check(compiled().spec["objects"])


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_golden(kind: str, compute: Any, work: Path) -> None:
    compute(memory="64Gi", volumes=[{"mount": "/data", "claim": "datasets"}])
    (work / "src").mkdir()
    (work / "src/train.py").write_text("")
    one = command(
        code="src",
        command="python train.py --data ${{inputs.data}} --rate ${{inputs.rate}} --out ${{outputs.model}}",
        inputs={"data": Input(type="uri_folder", path="/data/cifar"), "rate": 0.1},
        outputs={"model": Output(type="uri_folder")},
        environment_variables={"NCCL_DEBUG": "INFO"},
        distribution=DISTRIBUTIONS[kind],
        instance_count=2,
        timeout=3600,
        compute="cluster",
    )
    found = MLClient().jobs.compile(one, name="golden")
    check(found.spec["objects"])
    text = json.dumps(found.spec, indent=2, sort_keys=True) + "\n"
    text = text.replace(str(work), "<work>").replace(made.bootstrap_name(), "<bootstrap>")
    path = GOLDEN / f"kubernetes-{kind}.json"
    if os.environ.get("JOBSDK_WRITE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text()


def test_what_is_printed_is_what_kubectl_takes(compute: Any) -> None:
    compute()
    found = compiled()
    assert list(yaml.safe_load_all(found.compute.native(found.spec))) == found.spec["objects"]


@pytest.mark.parametrize("jobset", [False, True])
def test_a_thousand_nodes_take_no_more_room_than_two(jobset: bool, compute: Any) -> None:
    compute(jobset=jobset)
    two, thousand = (
        json.dumps(compiled(instance_count=nodes).spec)
        .replace(f": {nodes}", ": N")
        .replace(f'\\"nodes\\": {nodes}', "")
        for nodes in (2, 1000)
    )
    assert len(two) == len(thousand)


def test_the_pod(compute: Any) -> None:
    compute(**EVERYTHING)
    found = pod(grace_period=30, timeout=3600)
    (container,) = found["containers"]
    assert container["command"][-2:] == ["node", "/jobsdk/run"]
    devices = {"amd.com/gpu": "8", "rdma/hca": "1"}
    assert container["resources"] == {
        "requests": {"cpu": "96", "memory": "900Gi", **devices}, "limits": {"memory": "900Gi", **devices},
    }  # fmt: skip
    assert found["terminationGracePeriodSeconds"] > 30
    assert found["activeDeadlineSeconds"] > 3600 + 600
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}
    assert shm in found["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert {"name": "volume-1", "emptyDir": {"sizeLimit": "100Gi"}} in found["volumes"]
    assert {"name": "volume-3", "mountPath": "/nfs", "subPath": "me"} in container["volumeMounts"]
    outputs = {"name": "outputs", "mountPath": "/jobsdk/run/outputs", "subPath": "runs/able_acorn_1234567890"}
    assert outputs in container["volumeMounts"]
    assert found["schedulerName"] == "other"
    assert "enableServiceLinks" not in found
    assert found["hostIPC"] is True
    assert container["securityContext"] == {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}, "privileged": True}
    (near,) = found["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["topologyKey"] == "topology.kubernetes.io/rack"
    (apart,) = found["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"] == {"matchLabels": {made.LABEL: "able-acorn-1234567890"}}


@pytest.mark.parametrize(("nodes", "is_large"), [(500, False), (501, True)])
def test_a_large_job_is_placed_without_affinity_between_pods(nodes: int, is_large: bool, compute: Any) -> None:
    compute(exclusive=True, topology="rack")
    found = compiled(instance_count=nodes)
    check(found.spec["objects"])
    spec = made.pod_template(found.spec["objects"][-1])["spec"]
    warnings = [one.message.partition(":")[0] for one in found.findings if one.path == ("resources", "instance_count")]
    assert ("affinity" in spec) is not is_large
    assert spec.get("topologySpreadConstraints") == (
        [
            {
                "labelSelector": {"matchLabels": {made.LABEL: "able-acorn-1234567890"}},
                "topologyKey": "kubernetes.io/hostname",
                "maxSkew": 1,
                "whenUnsatisfiable": "DoNotSchedule",
            }
        ]
        if is_large
        else None
    )
    assert warnings == (
        [
            "topology is not used for more than 500 nodes",
            "exclusive spreads more than 500 nodes evenly",
        ]
        if is_large
        else []
    )


def test_what_the_job_says_goes_before_what_the_compute_says(compute: Any) -> None:
    compute(memory="64Gi", shm_size="1Gi", node_selector={"pool": "gpu"})
    own = {"kubernetes": {"memory": "128Gi", "gpu_resource": "nvidia.com/mig-1g.10gb"}}
    resources = {
        "instance_count": 1,
        "properties": own,
        "shm_size": "2g",
        "gpus_per_process": 2,
        "instance_type": "big",
    }
    found = pod(instance_count=None, resources=resources, environment={"image": "mine:2"})
    (container,) = found["containers"]
    assert container["resources"]["limits"] == {"memory": "128Gi", "nvidia.com/mig-1g.10gb": "8"}
    assert container["image"] == "mine:2"
    assert found["nodeSelector"] == {"pool": "gpu", "node.kubernetes.io/instance-type": "big"}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}} in found["volumes"]


def test_pods_find_node_0_before_they_are_ready(compute: Any) -> None:
    compute()
    found = objects()
    service = found["Service"]
    assert service["spec"] == {
        "clusterIP": "None", "publishNotReadyAddresses": True, "selector": {made.LABEL: "able-acorn-1234567890"},
    }  # fmt: skip
    spec = found["Job"]["spec"]["template"]["spec"]
    assert spec["subdomain"] == service["metadata"]["name"] == found["Job"]["metadata"]["name"]
    control = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}["JOBSDK_CONTROL"]
    assert control == "able-acorn-1234567890-0.able-acorn-1234567890 29871,29872,29873,29874"
    assert found["Job"]["spec"]["template"]["metadata"]["labels"][made.LABEL] == service["spec"]["selector"][made.LABEL]


def test_what_yaml_takes_for_flags_and_numbers_is_text(compute: Any) -> None:
    compute(
        labels={"team": 7, made.LABEL: "other"}, annotations={"x": False}, node_selector={"gpu": True}, env={"A": True}
    )
    found = compiled().spec["objects"]
    check(found)
    template = made.pod_template(found[-1])
    assert template["metadata"]["labels"]["team"] == "7"
    assert template["metadata"]["labels"][made.LABEL] == found[-1]["metadata"]["name"]
    assert template["metadata"]["annotations"] == {"x": "false"}
    assert template["spec"]["nodeSelector"] == {"gpu": "true"}
    assert {"name": "A", "value": "true"} in template["spec"]["containers"][0]["env"]


def test_a_jobset_brings_its_own_names(compute: Any) -> None:
    compute(jobset=True, topology="cloud.google.com/gke-nodepool")
    found = objects()
    assert "Service" not in found
    jobset = found["JobSet"]
    assert jobset["metadata"]["annotations"]["alpha.jobset.sigs.k8s.io/exclusive-topology"]
    env = made.pod_template(jobset)["spec"]["containers"][0]["env"]
    assert {"name": "JOBSDK_CONTROL", "value": "able-acorn-1234567890-node-0-0.able-acorn-1234567890 "
            "29871,29872,29873,29874"} in env  # fmt: skip


def test_kueue_decides_when_and_where(compute: Any) -> None:
    compute(queue="team", topology="rack")
    found = objects()["Job"]
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert found["spec"]["suspend"] is True
    template = found["spec"]["template"]
    assert template["metadata"]["annotations"] == {"kueue.x-k8s.io/podset-required-topology": "rack"}
    assert "affinity" not in template["spec"]


def test_a_pod_that_is_taken_away_comes_back_only_where_restarts_are_allowed(compute: Any) -> None:
    compute()
    assert "podFailurePolicy" not in objects()["Job"]["spec"]
    (rule,) = objects(max_preemptions=1)["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "Ignore"
    assert objects()["Job"]["spec"]["backoffLimitPerIndex"] == 0


@pytest.mark.parametrize(
    ("fields", "is_replaced"),
    [
        ({"max_preemptions": 1}, True),
        ({"max_restarts": 1}, True),
        ({}, False),
        ({"max_restarts": 1, "nodes": 1}, True),
    ],
)
def test_nodes_wait_for_another_node_0_where_it_comes(compute: Any, fields: dict[str, Any], is_replaced: bool) -> None:
    compute()
    nodes = fields.pop("nodes", 2)
    template = objects(instance_count=nodes, **fields)["Job"]["spec"]["template"]
    names = {one["name"] for one in template["spec"]["containers"][0]["env"]}
    assert {"JOBSDK_REPLACES" in names, "JOBSDK_REPLACED" in names} == {is_replaced}


def test_secrets_are_named_not_shown(compute: Any) -> None:
    compute()
    found = compiled(environment_variables={"WANDB_API_KEY": "swordfish-1234"})
    assert "swordfish" not in json.dumps(found.spec) + found.compute.native(found.spec)
    secret = next(one for one in found.spec["objects"] if one["kind"] == "Secret")
    assert secret["metadata"]["annotations"][made.ADDED] == "token secrets.json"
    assert "data" not in secret


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("able_acorn_1234567890", "able-acorn-1234567890"),
        ("lower-case", "lower-case"),
        ("1st", "run-1st-"),
        ("Upper", "upper-"),
        ("a.b", "a-b-"),
        ("é", "run-"),
        ("x" * 200, "x" * 38 + "-"),
    ],
)
def test_names(run: str, name: str) -> None:
    found = made.dns_name(run)
    assert found.startswith(name)
    assert len(found) <= 45
    assert found == found.lower()
    assert (len(found) == len(name)) is not name.endswith("-")


def test_names_that_differ_stay_different() -> None:
    runs = ["Upper", "upper", "a.b", "a_b", "x" * 60, "x" * 61]
    assert len({made.dns_name(run) for run in runs}) == len(runs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memroy": 1}, "has no setting 'memroy': did you mean 'memory'?"),
        ({"fetch_image": 1}, "fetch_image must be a text, not 1"),
        ({"jobset": "yes"}, "jobset must be true or false, not 'yes'"),
        ({"volumes": [{"mount": "/x"}]}, "needs one of claim, host_path, empty_dir, source"),
        ({"volumes": [{"mount": "x", "claim": "c"}]}, "needs mount, an absolute path"),
        ({"volumes": [{"mount": "/x", "claim": "c", "subpath": "x"}]}, "there is no 'subpath'"),
        ({"code_url": {"upload": "s3://x"}}, "code_url must have the keys upload and fetch"),
        ({"patches": [{"patch": {}}]}, "each must be {kind: KIND, patch: {...}}"),
        ({"gpus_per_node": -1}, "gpus_per_node must be a number of at least 0, not -1"),
        ({"memory": "64g"}, "memory must be an amount such as 8 or 64Gi, not '64g'"),
        ({"shm_size": "16 Gi"}, "shm_size must be an amount such as 64Gi, not '16 Gi'"),
        ({"cpu": -3}, "cpu must be an amount"),
        ({"rdma": {"rdma/hca": True}}, "rdma must be a mapping of amounts"),
        ({"labels": {"team": "with space"}}, "labels must be a mapping of labels: at most 63 letters"),
        ({"labels": {"a b": "x"}}, "labels must be a mapping of labels"),
        ({"node_selector": {"x": "y" * 64}}, "node_selector must be a mapping of labels"),
        ({"env": {"A": {"b": 1}}}, "env must be a mapping of texts"),
        ({"env": {"A": None}}, "env must be a mapping of texts"),
        ({"image_pull_policy": "Sometimes"}, "image_pull_policy must be Always, IfNotPresent or Never"),
        ({"namespace": "Research Team"}, "namespace must be a name of small letters, digits and -"),
        (
            {"patches": [{"kind": "Pods", "patch": {}}]},
            "patches there is no kind 'Pods'; there are ConfigMap, Container",
        ),
        ({"volumes": [{"mount": m, "claim": "d"} for m in ("/a", "/a/")]}, "volumes mount two volumes at /a"),
        ({"volumes": [{"mount": "/jobsdk/run", "claim": "d"}]}, "/jobsdk is for jobsdk itself"),
    ],
)
def test_mistakes_in_settings(settings: dict[str, Any], message: str, compute: Any) -> None:
    compute(**settings)
    with pytest.raises(ComputeError) as caught:
        compiled()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resources": {"properties": {"kubernetes": {"memroy": 1}}}}, "did you mean 'memory'?"),
        ({"resources": {"properties": {"kubernetes": {"context": "x"}}}}, "is no setting of a job"),
        ({"inputs": {"x": Input(type="uri_file", path="azureml:x:1")}}, "can be read only in its cloud"),
        ({"code": "https://x.example/y"}, "is not on this machine"),
    ],
)
def test_mistakes_in_jobs(fields: dict[str, Any], message: str, compute: Any) -> None:
    compute()
    with pytest.raises(ValidationError) as caught:
        compiled(**{"instance_count": None, **fields} if "resources" in fields else fields)
    assert message in str(caught.value)


def test_what_does_not_fit_the_machine_is_said_once(compute: Any) -> None:
    compute(instance_type="Standard_NC24s_v3")
    assert [one.message for one in compiled().warnings if "has no InfiniBand" in one.message] == [
        "Standard_NC24s_v3 has no InfiniBand: 2 nodes exchange all gradients over Ethernet"
    ]


def test_a_job_needs_an_image(configure: Configure, server: ApiServer) -> None:
    configure(server, image="x")
    assert compiled().spec["objects"]
    configure(server, image=None)
    with pytest.raises(ValidationError, match="the compute cluster needs a container image"):
        compiled()


def test_what_is_ignored_is_reported(compute: Any) -> None:
    compute()
    resources = {"instance_count": 1, "docker_args": "--x"}
    found = compiled(
        command="hostname > ${{outputs.model}}/x; cat ${{inputs.data}}",
        outputs={"model": Output(type="uri_folder")},
        inputs={"data": Input(type="uri_file", path="/nowhere/x")},
        instance_count=None,
        resources=resources,
        environment={"image": "i", "conda_file": {"dependencies": ["numpy"]}},
    )
    said = " ".join(map(str, found.warnings))
    for words in ("stays in the pods", "has no effect", "is not on a volume", "packages are not installed"):
        assert words in said


def test_pods_pass_pod_security_restricted_with_a_user(compute: Any) -> None:
    """What the level `restricted` asks for (kubernetes.io/docs/concepts/security/pod-security-standards)."""
    compute(run_as_user=1000)
    found = pod()
    assert found["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000,
        "runAsNonRoot": True,
    }  # fmt: skip
    (container,) = found["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert found["automountServiceAccountToken"] is False
    assert all(set(one) <= {"name", "configMap", "emptyDir", "projected"} for one in found["volumes"])


def test_what_a_pod_may_is_a_setting(compute: Any) -> None:
    compute(capabilities=["SYS_PTRACE"], rdma={"rdma/hca": 1}, read_only_root=True, service_account_token=True)
    found = pod()
    (container,) = found["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK", "SYS_PTRACE"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
    assert found["automountServiceAccountToken"] is True
    assert "runAsNonRoot" not in found["securityContext"]
    compute(capabilities=["SYS_ADMIN"], run_as_non_root=True)
    found = pod()
    assert "allowPrivilegeEscalation" not in found["containers"][0]["securityContext"]
    assert found["securityContext"]["runAsNonRoot"] is True
