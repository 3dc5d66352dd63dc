"""A job in Azure ML's own terms, for both launchers."""

from __future__ import annotations

import json
import os
import random
import subprocess
from typing import Any

import pytest

from jobsdk import (
    DeepSpeedDistribution,
    Input,
    MpiDistribution,
    Output,
    PyTorchDistribution,
    RayDistribution,
    TensorFlowDistribution,
    command,
)
from jobsdk.bootstrap.agent import azureml_node
from jobsdk.bootstrap.spec.plan import Plan
from jobsdk.compute.azureml import translation
from jobsdk.job.command import CommandJob
from jobsdk.planning.plan import make_plan, whole_plan
from jobsdk.planning.secrets import complete, seal

BOOTSTRAP = {"launcher": "bootstrap"}


def job(text: str = "python train.py", **fields: Any) -> CommandJob:
    fields.setdefault("distribution", PyTorchDistribution(process_count_per_instance=2))
    return command(command=text, environment="azureml:env:1", instance_count=2, **fields)


def native(the_job: CommandJob, settings: dict[str, Any] | None = None) -> CommandJob:
    return translation.native_job(the_job, make_plan(the_job, name="run"), settings or {})


def said(the_job: CommandJob, settings: dict[str, Any] | None = None) -> list[str]:
    plan = make_plan(the_job, name="run")
    return [str(one) for one in translation.findings("azure", the_job, plan, settings or {})]


def whole(the_job: CommandJob, environ: dict[str, str]) -> Plan:
    """The plan with its secrets, as a run's folder holds it until it is submitted."""
    plan, taken = seal(whole_plan(the_job, name="run"), the_job)
    for key, part in complete(taken, plan["secrets"], environ).items():
        plan[key] = {**plan[key], **part} if isinstance(part, dict) and key in plan else part
    return plan


# -- which launcher --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distribution", "settings", "own", "launcher"),
    [
        (None, {}, {}, "native"),
        (PyTorchDistribution(), {}, {}, "native"),
        (MpiDistribution(), BOOTSTRAP, {}, "bootstrap"),
        (MpiDistribution(), BOOTSTRAP, {"launcher": "native"}, "native"),
        (TensorFlowDistribution(), {}, {"launcher": "bootstrap"}, "bootstrap"),
        (DeepSpeedDistribution(), {}, {}, "bootstrap"),
        (DeepSpeedDistribution(), {"launcher": "native"}, {}, "bootstrap"),
        (RayDistribution(), {}, {}, "native"),
        (RayDistribution(), BOOTSTRAP, {}, "bootstrap"),
    ],
)
def test_who_starts_the_ranks(distribution: Any, settings: dict[str, Any], own: dict[str, Any], launcher: str) -> None:
    the_job = job(distribution=distribution)
    the_job.resources.properties = {"azureml": own}
    assert translation.launcher(the_job, settings) == launcher


# -- native ----------------------------------------------------------------------------------------------------------


def test_a_job_that_azure_ml_knows_stays_as_it_is() -> None:
    the_job = job(
        inputs={"data": Input(path="azureml:data:1"), "epochs": 3}, outputs={"model": Output()}, timeout=60,
        environment_variables={"A": "b"}, tags={"a": "b"},
    )  # fmt: skip
    before = the_job.to_dict()
    assert native(the_job) == the_job
    assert the_job.to_dict() == before


def test_jobsdks_own_fields_are_taken_off_and_told_of() -> None:
    the_job = job(
        distribution=MpiDistribution(launcher="hydra"), preload="torch", max_restarts=2, restart_delay=5,
        limits={"timeout": 60, "hang_timeout": 5}, gpus_per_process=1, secrets=["HOME"],
    )  # fmt: skip
    the_job.resources.properties = {"azureml": {"launcher": "native"}, "other": {"a": 1}}
    expected = job(distribution=MpiDistribution(), timeout=60)
    expected.resources.properties = {"other": {"a": 1}}
    assert native(the_job) == expected
    places = {line.split(": ")[1] for line in said(the_job)}
    assert places == {
        "distribution.launcher", "preload", "max_restarts", "restart_delay", "limits.hang_timeout",
        "resources.gpus_per_process", "secrets",
    }  # fmt: skip


def test_optional_parts_are_left_out_or_in() -> None:
    the_job = job(
        "train $[[--a ${{inputs.a}}]]$[[--b ${{inputs.b}}]]",
        inputs={"a": Input(optional=True), "b": Input(path="azureml:b:1", optional=True)},
    )
    made = native(the_job)
    assert made.command == "train --b ${{inputs.b}}"
    assert list(made.inputs) == ["b"]


@pytest.mark.parametrize(
    ("distribution", "words"),
    [
        (DeepSpeedDistribution(), "error: distribution: Azure ML has no distribution for DeepSpeed"),
        (TensorFlowDistribution(chief=True), "error: distribution.chief: Azure ML starts no task of the role chief"),
    ],
)
def test_what_azure_ml_cannot_start(distribution: Any, words: str) -> None:
    the_job = job(distribution=distribution)
    the_job.resources.properties = {"azureml": {"launcher": "native"}}
    assert said(the_job) == [f"{words}. Fix: set resources.properties.azureml.launcher: bootstrap"]


# -- TF_CONFIG -------------------------------------------------------------------------------------------------------

WORKERS = ["host0:2222", "host1:2222"]
TASK = {"type": "worker", "index": 0}


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" , ", " : ")])
@pytest.mark.parametrize(
    ("cluster", "mended"),
    [
        ({"worker": WORKERS, "ps": []}, {"worker": WORKERS}),
        ({"ps": [], "worker": WORKERS}, {"worker": WORKERS}),
        ({"chief": ["c:1"], "ps": [], "worker": WORKERS}, {"chief": ["c:1"], "worker": WORKERS}),
        ({"worker": WORKERS}, {"worker": WORKERS}),
        ({"worker": WORKERS, "ps": ["10.0.0.4:2222"]}, {"worker": WORKERS, "ps": ["10.0.0.4:2222"]}),
    ],
)
def test_an_empty_list_of_parameter_servers_is_taken_out(
    shell: str, separators: tuple[str, str], cluster: dict[str, Any], mended: dict[str, Any]
) -> None:
    given = {"cluster": cluster, "task": TASK, "environment": "cloud"}
    script = native(job('printf %s "$TF_CONFIG"', distribution=TensorFlowDistribution())).command or ""
    found = _run(shell, script, {"TF_CONFIG": json.dumps(given, separators=separators)})
    assert json.loads(found) == {**given, "cluster": mended}


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_without_a_tf_config_there_is_none_afterwards(shell: str) -> None:
    script = native(job('echo "[${TF_CONFIG-none}]"; exit 0', distribution=TensorFlowDistribution())).command or ""
    assert _run(shell, script, {}) == "[none]\n"


def test_a_value_with_quotes_and_backslashes_stays_whole() -> None:
    odd = '{"cluster": {"worker": ["a:1"], "ps": []}, "note": "it\'s \\"$HOME\\" \\\\n %s"}'
    script = native(job('printf %s "$TF_CONFIG"', distribution=TensorFlowDistribution())).command or ""
    assert _run("dash", script, {"TF_CONFIG": odd}) == odd.replace(', "ps": []', "")


def test_only_where_it_may_be_empty_and_is_wanted() -> None:
    assert native(job(distribution=TensorFlowDistribution(parameter_server_count=1))).command == "python train.py"
    assert native(job(distribution=TensorFlowDistribution()), {"mend_tf_config": False}).command == "python train.py"
    assert native(job()).command == "python train.py"


def _run(shell: str, script: str, variables: dict[str, str]) -> str:
    environ = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run([shell, "-c", script], env=environ, capture_output=True, text=True, check=True).stdout


# -- bootstrap -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "distribution",
    [None, PyTorchDistribution(process_count_per_instance=2), TensorFlowDistribution(), MpiDistribution(),
     DeepSpeedDistribution(process_count_per_instance=2)],
)  # fmt: skip
def test_one_process_of_the_type_pytorch_starts_the_bootstrap_on_each_node(distribution: Any) -> None:
    the_job = job(
        "python train.py ${{inputs.data}} ${{inputs.epochs}} ${{outputs.model}}",
        distribution=distribution,
        inputs={"data": Input(path="azureml:data:1"), "epochs": 3},
        outputs={"model": Output()},
        environment_variables={"A": "b"},
    )
    made = native(the_job, BOOTSTRAP)
    assert made.distribution == PyTorchDistribution(process_count_per_instance=1)
    assert made.command == (
        "export JOBSDK_PATH_INPUT_data='${{inputs.data}}' JOBSDK_PATH_OUTPUT_model='${{outputs.model}}' && "
        "exec python3 -S -E .jobsdk/bootstrap.pyz azureml"
    )
    assert made.inputs == the_job.inputs
    assert made.outputs == the_job.outputs
    plan = azureml_node.unpacked(made.environment_variables.pop("JOBSDK_PLAN"))
    assert made.environment_variables == {"A": "b"}
    ours = make_plan(the_job, name="run")
    assert plan["distribution"] == ours["distribution"]
    assert plan["command"] == ours["command"]
    assert plan["inputs"]["data"]["uri"] is None, "it is of no use there, and may hold a signature"


def test_a_single_node_needs_no_distribution() -> None:
    the_job = job()
    the_job.resources.instance_count = 1
    assert native(the_job, BOOTSTRAP).distribution is None


def test_the_python_of_the_bootstrap_is_a_setting() -> None:
    made = native(job(), {**BOOTSTRAP, "python": "/opt/conda/bin/python"})
    assert made.command == "exec /opt/conda/bin/python -S -E .jobsdk/bootstrap.pyz azureml"


def test_azure_mls_own_limit_comes_after_the_bootstraps() -> None:
    limits = {"timeout": 60, "grace_period": 5, "rendezvous_timeout": 100}
    made = native(job(limits=limits), BOOTSTRAP).limits
    assert made is not None
    assert made.timeout == 60 + 5 + 100 + 60
    assert made.hang_timeout is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"distribution": RayDistribution(head_node_additional_args="--port 6379")},
            "error: distribution.head_node_additional_args: --port is set by jobsdk. Fix: set distribution.port",
        ),
        ({"code": "azureml:code:1"}, "error: code: the bootstrap goes with the code, which must be on this machine"),
        (
            {"text": "echo " + random.Random(7).randbytes(110_000).hex()},
            "error: command: the plan of the job is too long",
        ),
    ],
)
def test_what_the_bootstrap_does_not_support_or_ignores(fields: dict[str, Any], words: str) -> None:
    the_job = job(**fields)
    the_job.resources.properties = {"azureml": BOOTSTRAP}
    (line,) = said(the_job)
    assert line.startswith(words)
    assert len(line) <= 400


def test_an_unknown_launcher_is_an_error() -> None:
    the_job = job()
    the_job.resources.properties = {"azureml": {"launcher": "ssh"}}
    assert said(the_job) == [
        "error: resources.properties.azureml.launcher: there is no launcher 'ssh'. Fix: write native or bootstrap"
    ]


# -- secrets ---------------------------------------------------------------------------------------------------------

KEY = "hf_" + "a1B2" * 8


@pytest.mark.parametrize("launcher", translation.LAUNCHERS)
def test_secrets_are_put_in_when_the_job_is_sent_and_not_before(launcher: str) -> None:
    from jobsdk.job.secret_rules import without

    the_job = job(
        f"login --token {KEY}; train ${{{{inputs.data}}}} ${{{{inputs.key}}}}",
        secrets=["PASSWORD"],
        inputs={"data": Input(path="https://x.blob.core.windows.net/c/d?sig=abcdefgh1234"), "key": KEY},
    )
    settings = {"launcher": launcher}
    plan = make_plan(the_job, name="run")
    kept = without(translation.native_job(the_job, plan, settings))
    shown = json.dumps([kept.to_dict(), azureml_node.unpacked(kept.environment_variables.get("JOBSDK_PLAN", _EMPTY))])
    assert KEY not in shown
    assert "abcdefgh1234" not in shown
    sent = translation.completed(kept, whole(the_job, {"PASSWORD": "pass-word"}), "ab" * 32)
    assert sent.environment_variables["PASSWORD"] == "pass-word"
    assert sent.inputs == the_job.inputs
    if launcher == "native":
        assert sent.command == f"login --token {KEY}; train ${{{{inputs.data}}}} {KEY}"
        assert set(sent.environment_variables) == {"PASSWORD"}
    else:
        assert sent.environment_variables["JOBSDK_TOKEN"] == "ab" * 32
        there = azureml_node.unpacked(sent.environment_variables["JOBSDK_PLAN"])
        assert there["command"][0] == f"login --token {KEY}; train "
        assert there["inputs"]["key"] == {"literal": KEY}
        assert there["sealed"] == []
    assert "PASSWORD" not in kept.environment_variables


_EMPTY = azureml_node.packed({})


def test_that_azure_ml_shows_secrets_is_told() -> None:
    (line,) = said(job(secrets=["HOME"]))
    assert line.startswith("warning: secrets: Azure ML shows HOME to everybody who may read the job")
    (line,) = said(job(environment_variables={"HF_TOKEN": KEY}))
    assert line.startswith("warning: environment_variables.HF_TOKEN: Azure ML shows HF_TOKEN to everybody")
