"""The same job files given to azure-ai-ml and to jobsdk: the same body, and for mistakes both answers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from jobsdk import Input, from_azure, load_job, to_azure
from jobsdk.job.yaml_file import read_job
from tests.azureml import comparing, files, spellings, strategies
from tests.azureml.captured import Captured

AZURE = pytest.mark.framework("azure")
_SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("path", [*files.OWN_JOBS, *files.OTHERS], ids=files.name)
def test_a_job_file_has_the_body_that_azure_ai_ml_sends(path: Path, captured: Captured, away: Path) -> None:
    from azure.ai.ml import load_job as load_theirs

    if files.is_template(path):
        with pytest.raises(Exception, match="Validation for CommandSchema failed"):
            load_theirs(path)
        return
    command = load_theirs(path)
    job = load_job(path)
    wrong = [finding for finding in job.findings() if finding.is_error]
    if path in files.OTHERS:  # their scripts are not in the corpus
        wrong = [finding for finding in wrong if " is not in the code folder " not in finding.message]
    assert not wrong
    assert comparing.normal(from_azure(command)) == comparing.normal(job)
    body = comparing.ours(job)
    assert comparing.theirs(captured.sent(command), job) == body
    assert comparing.compiled(job) == body

    job.dump(away / "again.yml")
    again = load_job(away / "again.yml")
    assert again == job
    assert comparing.ours(again) == body
    made = to_azure(job)
    assert comparing.normal(from_azure(made)) == comparing.normal(job)
    assert comparing.theirs(captured.sent(made), job) == body


@pytest.mark.parametrize("path", files.SPECS, ids=files.name)
def test_the_job_files_of_the_repository_are_sent_as_they_are_shown(path: Path, captured: Captured, away: Path) -> None:
    job = load_job(path, {"environment": {"image": "ubuntu:22.04"}})
    (away / "numbers.csv").write_text("1\n")
    for item in job.inputs.values():
        if isinstance(item, Input) and item.path and not job.resolve(item.path).exists():  # made by a script
            item.path = str(away)
    if job.distribution is not None and job.distribution.type == "deepspeed":
        with pytest.raises(Exception, match="Azure ML has none of the type deepspeed"):
            to_azure(job)
        return
    made = to_azure(job)
    assert comparing.normal(from_azure(made)) == comparing.normal(job)
    assert comparing.theirs(captured.sent(made), job) == comparing.ours(job)


#: With `make parity` and in CI after a change of what is compared: three times as many.
_MORE = 3 if os.environ.get("JOBSDK_PARITY") == "1" else 1


@pytest.mark.timeout(900)
@settings(_SETTINGS, max_examples=160 * _MORE)
@given(strategies.jobs())
@example(
    {
        "command": "x",
        "environment": "azureml:e:1",
        "resources": {"properties": {"aisupercomputer": [1], "singularity": {}}},
    }
)
def test_any_job_has_the_body_that_azure_ai_ml_sends(captured: Captured, folder: Path, data: dict[str, object]) -> None:
    from azure.ai.ml import load_job as load_theirs

    path = _written(folder, data)
    command = load_theirs(path)
    job = load_job(path)
    job.validate()
    assert comparing.normal(from_azure(command)) == comparing.normal(job)
    body = comparing.ours(job)
    assert comparing.theirs(captured.sent(command, judged=False), job) == body
    assert comparing.compiled(job) == body


@settings(_SETTINGS, max_examples=100, phases=[Phase.explicit, Phase.generate])  # shrinking would take minutes
@given(st.data())
def test_every_spelling_that_its_loader_takes_loads_here(captured: Captured, folder: Path, data: st.DataObject) -> None:
    from azure.ai.ml import load_job as load_theirs

    path = _written(folder, data.draw(spellings.jobs()))
    command = load_theirs(path)
    job = load_job(path)
    job.validate()
    body = comparing.ours(job)
    assert comparing.theirs(captured.sent(command, judged=False), job) == body
    assert comparing.compiled(job) == body


@pytest.mark.timeout(900)
@settings(_SETTINGS, max_examples=50 * _MORE)
@given(strategies.jobs())
def test_any_job_comes_back_as_it_was(captured: Captured, folder: Path, data: dict[str, object]) -> None:
    job = load_job(_written(folder, data))
    before = job.to_dict()
    body = comparing.ours(job)
    made = to_azure(job)
    back = from_azure(made)
    assert comparing.normal(back) == comparing.normal(job)
    assert comparing.ours(back) == body
    assert comparing.theirs(captured.sent(made, judged=False), job) == body
    assert job.to_dict() == before

    job.dump(folder / "again.yml", overwrite=True)
    again = load_job(folder / "again.yml")
    assert again == job
    assert comparing.ours(again) == body


_OWN_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "secrets": st.lists(st.sampled_from(["V_KEY", "V_OTHER"]), unique=True),
        "preload": st.one_of(st.just("torch"), st.lists(st.sampled_from(["torch", "numpy.linalg"]))),
        "max_restarts": st.integers(0, 5),
        "max_preemptions": st.integers(0, 5),
        "restart_delay": st.integers(0, 90),
        "retry_on": st.one_of(st.integers(1, 255), st.just("out_of_memory"), st.lists(st.just("a.*b"))),
        "never_retry_on": st.just([1, "user_error"]),
    },
)


@AZURE
@pytest.mark.timeout(900)
@settings(_SETTINGS, max_examples=35 * _MORE)
@given(strategies.jobs(), _OWN_FIELDS, st.booleans())
def test_fields_of_jobsdk_s_own_come_back(folder: Path, data: dict, own: dict, inner: bool) -> None:
    if inner:
        data["limits"] = {**data.get("limits", {}), "hang_timeout": 60, "grace_period": 5, "rendezvous_timeout": 7}
        data["resources"] = {**data.get("resources", {}), "gpus_per_process": 2}
        kind = data.setdefault("distribution", {"type": "mpi"})["type"].lower()
        further = {"mpi": {"launcher": "direct"}, "tensorflow": {"chief": True}}.get(kind, {"added_property": {"a": 1}})
        data["distribution"].update(further)
    job = load_job(_written(folder, {**data, **own}))
    back = from_azure(to_azure(job))
    assert comparing.normal(back) == comparing.normal(job)
    assert comparing.ours(back) == comparing.ours(job)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the jobs name, and the working directory: the experiment is called after it."""
    folder = tmp_path_factory.mktemp("jobs")
    strategies.lay_out(folder)
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def _written(folder: Path, data: dict[str, object]) -> Path:
    path = folder / "job.yml"
    path.write_text(yaml.safe_dump(data, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


#: What each says of a mistake in `mistakes/`. azure-ai-ml: "sends" it, or refuses "late", after uploads.
#: jobsdk: "error" before anything happens, or "warning" where it may be meant.
MISTAKES = {
    "environment-without-version": ("late", "error", "environment"),
    "expression-unclosed": ("sends", "error", "command"),
    "input-is-a-folder": ("sends", "error", "inputs.data.type"),
    "input-missing": ("late", "error", "inputs.data.path"),
    "input-undeclared-spaced": ("sends", "error", "command"),
    "input-unused": ("sends", "warning", "inputs.left"),
    "instance-count-negative": ("sends", "error", "resources.instance_count"),
    "instance-count-zero": ("sends", "error", "resources.instance_count"),
    "key-twice": ("sends", "error", "compute"),
    "local-path-direct": ("sends", "error", "inputs.data.mode"),
    "namespace-unknown": ("sends", "error", "command"),
    "output-undeclared": ("sends", "error", "command"),
    "process-count-fraction": ("sends", "error", "distribution.process_count_per_instance"),
    "process-count-negative": ("sends", "error", "distribution.process_count_per_instance"),
    "process-count-zero": ("sends", "error", "distribution.process_count_per_instance"),
    "script-missing": ("sends", "error", "command"),
    "service-type": ("sends", "error", "services.lab.type"),
    "service-without-type": ("sends", "error", "services.lab"),
    "shm-size": ("sends", "error", "resources.shm_size"),
    "timeout-negative": ("sends", "error", "limits.timeout"),
    "too-many-workers": ("sends", "error", "distribution.worker_count"),
    "variable-is-a-list": ("sends", "error", "environment_variables.A"),
    "variable-name": ("sends", "error", "environment_variables.A=B"),
    "worker-count-negative": ("sends", "error", "distribution.worker_count"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_that_azure_ai_ml_lets_pass_is_found(name: str, captured: Captured) -> None:
    from azure.ai.ml import load_job as load_theirs

    says, severity, place = MISTAKES[name]
    path = files.HERE / "mistakes" / f"{name}.yml"
    command = load_theirs(path)
    if says == "sends":
        captured.sent(command)
    else:
        with pytest.raises(Exception, match=r"(?i)version must be provided|no such file"):
            captured.sent(command)
        assert any(request.startswith("PUT /container") for request in captured.service.requests), "after uploads"

    (finding,) = read_job(path)[1]
    assert (finding.severity, ".".join(map(str, finding.path))) == (severity, place)
    assert finding.line is not None
    assert finding.fix
    assert len(str(finding)) <= 400


def test_the_document_lists_these_mistakes() -> None:
    text = (files.ROOT / "docs" / "azureml-differences.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \|[^|]*\| (sends|late) \| (error|warning) \|$", text, re.MULTILINE)
    assert {name: (says, severity) for name, says, severity in rows} == {
        name: (says, severity) for name, (says, severity, _) in MISTAKES.items()
    }
    assert {path.stem for path in (files.HERE / "mistakes").glob("*.yml")} == set(MISTAKES)


def test_the_corpus_is_all_there() -> None:
    if not files.CORPUS.is_dir():
        assert "JOBSDKfiles.CORPUS" not in os.environ, f"JOBSDKfiles.CORPUS: there is no {files.CORPUS}"
        return
    assert len(files.OTHERS) >= 44
