"""What each compute makes of a job's `scaling`: what it is given, what it ignores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobsdk import JobsdkError, MLClient, PyTorchDistribution, ScalingConfig, TorchConfig, command
from jobsdk.bootstrap import distributions
from jobsdk.client.operations import Submission
from jobsdk.compute.kubernetes import objects as kubernetes_objects
from jobsdk.doctor import plan_preflight
from jobsdk.errors import ComputeError
from jobsdk.job.command import CommandJob

AZURE = {
    "type": "azureml", "subscription_id": "00000000-0000-0000-0000-000000000000", "resource_group": "group",
    "workspace_name": "workspace", "image": "nvcr.io/nvidia/pytorch:25.01-py3",
}  # fmt: skip
HOSTS = ["a", "b", {"host": "c", "gpus": 2}]
EACH = {"GPU": 1, "CPU": 6, "memory": 8 * 2**30}


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def configure(**settings: Any) -> None:
    Path("computes.yml").write_text(json.dumps({"computes": {"cluster": settings}}))


def job(workers: int = 16, **fields: Any) -> CommandJob:
    own = {name: fields.pop(name) for name in list(fields) if name in ScalingConfig._fields}
    own.setdefault("use_gpu", "GPU" in (own.get("resources_per_worker") or {"GPU": 1}))
    return command(command="env", compute="cluster", scaling=ScalingConfig(num_workers=workers, **own), **fields)


def compiled(*args: Any, **fields: Any) -> Submission:
    return MLClient().jobs.compile(job(*args, **fields), name="run")


def said(*args: Any, **fields: Any) -> dict[str, str]:
    """Where -> severity and words."""
    found = MLClient().jobs.validate(job(*args, **fields)).findings
    found = sorted(found, key=lambda one: one.is_error)  # errors win
    return {".".join(map(str, one.path)): f"{one.severity}: {one.message}. {one.fix}" for one in found}


# -- Slurm -----------------------------------------------------------------------------------------------------------


def sbatch(*args: Any, **fields: Any) -> set[str]:
    lines = compiled(*args, **fields).spec["script"].splitlines()
    names = ("--nodes", "--gpus", "--gres", "--cpus", "--mem", "--constraint")
    options = (line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH "))
    return {option.replace("'", "") for option in options if option.startswith(names)}


@pytest.mark.parametrize(
    ("settings", "fields", "expected"),
    [
        (
            {"gpus_per_node": 8}, {"resources_per_worker": EACH, "accelerator_type": "A100"},
            {"--nodes=2", "--gpus-per-node=a100:8", "--cpus-per-task=48", "--mem=65536M"},
        ),
        ({"gpus_per_node": "h100:4"}, {}, {"--nodes=4", "--gpus-per-node=h100:4"}),
        (
            {"gres": "gpu:8,nvme:1"}, {"accelerator_type": "A100-80G"},
            {"--nodes=2", "--gres=gpu:a100-80g:8,nvme:1"},
        ),
        (
            {
                "gpus_per_node": 8, "constraint": "a|b",
                "accelerators": {"a100": {"type": "big", "constraint": "nvlink"}},
            },
            {"accelerator_type": "A100"},
            {"--nodes=2", "--gpus-per-node=big:8", "--constraint=(a|b)&nvlink"},
        ),
        (
            {"gpus_per_node": 4}, {"resources_per_worker": {"GPU": 0.5, "fpga": 0.5}},
            {"--nodes=2", "--gres=gpu:4,fpga:4"},
        ),
        (
            {"gpus_per_node": 8, "mem": "9G"}, {"resources_per_worker": {"CPU": 0.5}},
            {"--nodes=1", "--cpus-per-task=8", "--mem=9G"},
        ),
        ({"instance_type": "ND96asr_v4"}, {"resources_per_worker": {"GPU": 2}}, {"--nodes=4", "--gpus-per-node=8"}),
    ],
)  # fmt: skip
def test_slurm(settings: dict[str, Any], fields: dict[str, Any], expected: set[str]) -> None:
    configure(type="slurm", **settings)
    assert sbatch(**fields) == expected


def test_what_a_job_sets_for_slurm_itself_wins() -> None:
    configure(type="slurm", gpus_per_node=8)
    own = {"slurm": {"cpus_per_task": 3, "gres": "gpu:special:8", "mem": "1G"}}
    options = sbatch(resources_per_worker=EACH, resources={"properties": own})
    assert options == {"--nodes=2", "--gres=gpu:special:8", "--cpus-per-task=3", "--mem=1G"}


def test_what_slurm_has_no_words_for() -> None:
    configure(type="slurm", accelerators={"A100": "a100"})
    found = said(
        2, use_gpu=False, resources_per_worker={"a/b": 1}, accelerator_type="A100", label_selector={"zone": "a"}
    )
    assert found["scaling.resources_per_worker.a/b"].startswith("error: is no name of a generic resource")
    assert found["scaling.accelerator_type"].startswith(
        "warning: has no effect on the compute cluster: the workers ask"
    )
    assert found["scaling.label_selector"].startswith("warning: has no effect")
    assert "can be no type of a GPU" in said(2, accelerator_type="4090")["scaling.accelerator_type"]


@pytest.mark.parametrize(
    ("accelerators", "words"),
    [
        ("A100", "accelerators must be a mapping"),
        ({"A100": "a 100"}, "accelerators has a type of A100 that must be"),
        ({"A100": {"kind": "x"}}, "accelerators has A100.kind; there are type, constraint"),
    ],
)
def test_wrong_accelerators_of_slurm(accelerators: Any, words: str) -> None:
    configure(type="slurm", accelerators=accelerators)
    with pytest.raises(ComputeError, match=words):
        compiled()


# -- Kubernetes ------------------------------------------------------------------------------------------------------


def pod(*args: Any, **fields: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Nodes, resources, node selector."""
    of_job = compiled(*args, **fields).spec["objects"][-1]
    spec = kubernetes_objects.pod_template(of_job)["spec"]
    return of_job["spec"]["completions"], spec["containers"][0].get("resources", {}), spec.get("nodeSelector", {})


def test_kubernetes() -> None:
    accelerators = {"A100": "NVIDIA-A100-SXM4-80GB"}
    configure(
        type="kubernetes", image="x", gpus_per_node=8, cpu=1, accelerators=accelerators, node_selector={"pool": 1}
    )
    each = {**EACH, "example.com/fpga": 0.5}
    nodes, resources, selector = pod(resources_per_worker=each, accelerator_type="A100", label_selector={"zone": "a"})
    devices = {"nvidia.com/gpu": "8", "example.com/fpga": "4"}
    assert nodes == 2
    assert resources["requests"] == {"cpu": "48", "memory": str(64 * 2**30), **devices}
    assert resources["limits"] == {"memory": str(64 * 2**30), **devices}
    assert selector == {"pool": "1", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "zone": "a"}
    assert said(resources_per_worker=each, accelerator_type="A100") == {}
    own = {"kubernetes": {"cpu": 2, "gpus_per_node": 4, "devices": {"example.com/fpga": 9}}}
    nodes, resources, _ = pod(resources_per_worker=each, resources={"properties": own})
    assert (nodes, resources["requests"]["cpu"], resources["limits"]["nvidia.com/gpu"]) == (4, "2", "4")
    assert resources["limits"]["example.com/fpga"] == "9"


def test_kubernetes_by_another_label_and_without_gpus() -> None:
    configure(type="kubernetes", image="x", gpus_per_node=8, accelerator_label="cloud.google.com/gke-accelerator")
    nodes, resources, selector = pod(4, accelerator_type="nvidia-l4")
    assert (nodes, resources["limits"]) == (1, {"nvidia.com/gpu": "4"})
    assert selector == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    assert pod(4, use_gpu=False)[1] == {"requests": {"cpu": "4"}}


def test_what_kubernetes_has_no_words_for() -> None:
    configure(type="kubernetes", image="x")
    selector = [{"zone": "a"}, {"zone": "b"}]
    found = said(2, resources_per_worker={"GPU": 1, "fpga": 1}, accelerator_type="H100", label_selector=selector)
    assert found["scaling.resources_per_worker.fpga"].startswith("error: is no resource of Kubernetes")
    assert found["scaling.accelerator_type"].startswith("warning: nodes are asked for with the label")
    assert found["scaling.label_selector"].startswith("error: all nodes of a job on Kubernetes are alike")
    assert "Ray's operators" in said(2, label_selector={"zone": "!a"})["scaling.label_selector.zone"]


# -- Azure ML --------------------------------------------------------------------------------------------------------


def test_azure() -> None:
    configure(**AZURE, instance_type="Standard_ND96asr_v4")
    run = compiled(resources_per_worker=EACH, accelerator_type="A100", torch_config=TorchConfig("gloo"))
    body = run.spec["body"]["properties"]
    assert body["distribution"] == {"distributionType": "PyTorch", "processCountPerInstance": 8}
    assert body["resources"]["instanceCount"] == 2
    assert body["environmentVariables"]["JOBSDK_TORCH_BACKEND"] == "gloo"
    assert "jobsdk" not in body["properties"], "all of it is in Azure's own words"
    assert run.warnings == ()


def test_a_machine_of_azure_that_does_not_fit() -> None:
    configure(**AZURE, instance_type="Standard_NC24s_v3")
    error = said(8, accelerator_type="H100", placement_strategy="STRICT_PACK")
    assert error["compute"].startswith("error: Standard_NC24s_v3 has V100, and the job asks for H100. take Standard_")
    assert "Standard_ND96isr_H100_v5" in error["compute"]
    assert error["scaling.placement_strategy"].startswith("error: asks for one node, and 8 workers are on 2 nodes x 4")
    assert "takes 8 GPUs, and Standard_NC24s_v3 has 4 GPUs" in said(1, resources_per_worker={"GPU": 8})[
        "scaling.resources_per_worker"
    ]  # fmt: skip
    of_job = said(2, accelerator_type="T4", instance_type="Standard_NC6s_v3", instance_count=2)
    assert "Standard_NC6s_v3 has V100, and the job asks for T4" in of_job["resources.instance_type"]


def test_what_azure_ignores() -> None:
    configure(**AZURE)
    found = said(4, resources_per_worker={"GPU": 0.5, "memory": 1, "fpga": 1})
    assert sorted(found) == [
        "scaling.resources_per_worker", "scaling.resources_per_worker.fpga", "scaling.resources_per_worker.memory",
        "scaling.use_gpu",
    ]  # fmt: skip
    assert all(text.startswith("warning: ") for text in found.values())
    own = {"properties": {"azureml": {"launcher": "bootstrap"}}}
    assert "scaling.resources_per_worker" not in said(4, resources_per_worker={"GPU": 0.5}, resources=own)


# -- plain machines, and this one --------------------------------------------------------------------------------------


def test_ssh() -> None:
    configure(type="ssh", hosts=HOSTS, gpus_per_node=4)
    run = compiled(4)
    assert (run.plan["nodes"], run.plan["distribution"]["processes"], run.spec["gpus"]) == (2, 2, 2)
    assert compiled(9, use_gpu=False, placement_strategy="SPREAD").plan["nodes"] == 3
    found = said(3, resources_per_worker={"GPU": 0.5, "CPU": 2}, accelerator_type="A100")
    assert found == {
        "scaling.resources_per_worker.CPU": "warning: has no effect on the compute cluster. ",
        "scaling.accelerator_type": "warning: has no effect on the compute cluster. ",
    }
    assert "3 hosts" in said(8, use_gpu=False, placement_strategy="STRICT_SPREAD")["resources.instance_count"]


def test_this_machine_warns_of_what_it_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(type="local")
    found = said(999, accelerator_type="A100", resources_per_worker={"GPU": 0.5, "CPU": 2})
    assert found["scaling.use_gpu"].startswith("warning: 999 workers ask for 500 GPUs, this machine shows 0")
    assert found["scaling.resources_per_worker"].startswith("warning: 999 workers ask for 1998 CPUs, this machine has")
    assert found["scaling.accelerator_type"].startswith("warning: has no effect")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert said(4, resources_per_worker={"GPU": 0.5}) == {}


def test_two_workers_share_a_gpu_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    text = (
        "echo $RANK of $WORLD_SIZE on $NODE_RANK: $CUDA_VISIBLE_DEVICES $JOBSDK_TORCH_BACKEND $JOBSDK_TORCH_TIMEOUT_S"
    )
    scaling = ScalingConfig(num_workers=4, use_gpu=True, resources_per_worker={"GPU": 0.5})
    run = MLClient().jobs.create_or_update(
        command(command=text, scaling=scaling, torch_config=TorchConfig("gloo", timeout_s=60), instance_count=2)
    )
    run.result(120)
    lines = [(run.folder.logs / f"node-{rank // 2}/rank-{rank}.log").read_text() for rank in range(4)]
    assert lines == [f"{r} of 4 on {r // 2}: {'GPU-a' if r < 2 else 'GPU-b'} gloo 60\n" for r in range(4)]


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "local"},
        {"type": "slurm", "gpus_per_node": 8},
        {"type": "kubernetes", "image": "x", "gpus_per_node": 8},
        {**AZURE, "instance_type": "Standard_ND96asr_v4"},
        {"type": "ssh", "hosts": ["a", "b"], "gpus_per_node": 8},
    ],
    ids=lambda settings: settings["type"],
)
def test_explain_shows_the_layout_that_is_compiled(settings: dict[str, Any]) -> None:
    configure(**settings)
    the_job = job(16)
    shown, plan = the_job.explain(), compiled(16).plan
    assert shown.plan["nodes"] == plan["nodes"]
    assert len(shown) == distributions.of(plan).world_size() == 16
    nodes = plan["nodes"]
    assert f"scaling: 16 workers, PACK: {nodes} node{'s' * (nodes > 1)} x {16 // nodes}; each 1 GPU" in str(shown)
    assert shown[15].environment["JOBSDK_GPUS_PER_PROCESS"] == "1"


def test_a_preflight_asks_for_the_same_nodes() -> None:
    configure(type="slurm", gpus_per_node=8)
    run = plan_preflight(
        job(16, resources_per_worker={"GPU": 0.5, "CPU": 6}, accelerator_type="A100", instance_count=2)
    )
    options = run.spec["script"].splitlines()
    for option in ("--nodes=2", "--gpus-per-node=a100:4", "--cpus-per-task=48"):
        assert f"#SBATCH {option}" in options
    assert run.plan["preflight"]["gpus"] == 4
    assert plan_preflight(job(16), nodes=3).plan["nodes"] == 3


def test_azures_own_object_is_laid_out() -> None:
    pytest.importorskip("azure.ai.ml")
    from jobsdk import from_azure, to_azure

    the_job = command(
        command="env",
        environment="azureml:env:1",
        instance_type="Standard_NC24s_v3",
        scaling={"num_workers": 8, "use_gpu": True},
    )
    there = to_azure(the_job)
    assert (there.resources.instance_count, there.distribution.process_count_per_instance) == (2, 4)
    back = from_azure(there)
    assert back.distribution == PyTorchDistribution(process_count_per_instance=4)
    the_job.scaling = ScalingConfig(num_workers=8, use_gpu=True, placement_strategy="STRICT_PACK")
    with pytest.raises(JobsdkError, match="asks for one node"):
        to_azure(the_job)
