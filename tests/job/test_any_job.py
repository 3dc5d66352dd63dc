"""Any job survives writing and reading, and agrees with the schema; any document gives findings, never a traceback."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobsdk import CommandJob, load_job
from jobsdk.findings import LIMIT
from jobsdk.job.schema import job_schema
from jobsdk.job.yaml_file import read_job

FILES = sorted(file for file in Path(__file__).with_name("files").glob("*.yml") if file.name != "conda.yml")
many = settings(max_examples=800, suppress_health_check=list(HealthCheck))

# -- jobs that are valid ---------------------------------------------------------------------------------------------

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
words = texts.filter(str.strip)
counts = st.integers(1, 999) | st.integers(1, 999).map(str)
scalars = texts | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
paths = st.sampled_from(["data", "./a/b", "../up", "/abs/x", "file:here", "https://x/y?z=1", "azureml:a:1", "s3://b/c"])
sizes = st.from_regex(r"[1-9][0-9]{0,3}[bkmgBKMG]", fullmatch=True)
anything = st.recursive(scalars | st.none(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner))
free = st.dictionaries(texts, scalars | st.none(), max_size=3)


def fields(required: dict[str, Any] | None = None, **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required or {}, optional=optional)


inputs = scalars | fields(
    {"path": paths},
    type=st.sampled_from(["uri_file", "uri_folder", "mltable", "mlflow_model", "custom_model", "triton_model"]),
    mode=st.sampled_from(["ro_mount", "download", "direct", "mount"]),
    datastore=words,
    path_on_compute=words,
)
outputs = st.none() | fields(
    type=st.sampled_from(["uri_file", "uri_folder", "custom_model"]),
    path=paths,
    mode=st.sampled_from(["rw_mount", "upload", "direct", "mount"]),
    name=words,
    version=texts | st.integers(),
)
environments = st.sampled_from(
    ["azureml:env:1", "env@latest", "azureml://registries/a/environments/b/versions/1", "file:env.yml"]
) | fields(
    image=words,
    conda_file=paths | st.dictionaries(texts, anything, max_size=2),
    requirements=paths,
    build=fields(path=paths, dockerfile_path=words),
    os_type=st.sampled_from(["Linux", "Windows", "linux"]),
    tags=free,
)
distributions = st.one_of(
    fields({"type": st.sampled_from(["pytorch", "Torch", "torch.distributed"])}, process_count_per_instance=counts),
    fields({"type": st.sampled_from(["tf", "TensorFlow"])}, worker_count=counts, parameter_server_count=counts,
           chief=st.booleans()),
    fields({"type": st.sampled_from(["mpi", "horovod"])}, process_count_per_instance=counts,
           launcher=st.sampled_from(["mpirun", "openmpi", "hydra", "direct"])),
    fields({"type": st.just("deepspeed")}, config=words, autotuning=st.sampled_from(["tune", "run"])),
    fields({"type": st.just("RAY")}, port=st.integers(1, 65535), include_dashboard=st.booleans(), address=words),
)  # fmt: skip
services = fields({"type": st.sampled_from(["ssh", "vs_code", "JUPYTER_LAB"])}, nodes=st.just("all"),
                  port=st.integers(1, 65535), properties=st.dictionaries(texts, anything, max_size=2))  # fmt: skip
amounts = st.integers(0, 10**12) | st.sampled_from([0.5, "2", "1e9"])
scalings = fields(
    num_workers=counts,
    use_gpu=st.booleans(),
    resources_per_worker=st.dictionaries(st.sampled_from(["CPU", "memory", "fpga", "a/b"]), amounts),
    placement_strategy=st.sampled_from(["PACK", "spread", "STRICT_PACK", "Strict_Spread"]),
    accelerator_type=words,
    label_selector=st.dictionaries(names, texts, max_size=2),
)
jobs = fields(
    {"command": words},
    type=st.sampled_from(["command", "Command"]),
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True),
    display_name=texts,
    experiment_name=words,
    description=texts,
    tags=free,
    properties=free,
    code=paths,
    environment=environments,
    environment_variables=st.dictionaries(names, scalars, max_size=3),
    inputs=st.dictionaries(names, inputs, max_size=3),
    outputs=st.dictionaries(names, outputs, max_size=3),
    compute=words,
    distribution=distributions,
    resources=fields(
        instance_count=counts,
        instance_type=words,
        properties=st.dictionaries(texts, anything, max_size=2),
        locations=st.lists(words, max_size=2),
        shm_size=sizes,
        max_instance_count=counts,
        docker_args=texts | st.lists(texts, max_size=2),
        gpus_per_process=counts | st.sampled_from([0.5, 0.25, "0.5"]),
    ),
    scaling=scalings,
    torch_config=fields(
        backend=st.sampled_from(["nccl", "cpu:gloo,cuda:nccl"]),
        init_method=st.sampled_from(["env", "TCP"]),
        timeout_s=st.sampled_from([60, "30m", 1.5]),
    ),
    limits=fields(timeout=counts | st.sampled_from([30.5, "1h30m", "90 s"])),
    services=st.dictionaries(names, services, max_size=2),
    queue_settings=fields(job_tier=st.sampled_from(["spot", "Basic"]), priority=st.sampled_from(["low", "HIGH"])),
    identity=fields({"type": st.sampled_from(["managed", "managed_identity", "aml_token", "user_identity"])}),
    parent_job_name=words,
)


@pytest.mark.slow
@settings(many, max_examples=300)
@given(jobs)
def test_dump_and_load_give_an_equal_job(data: dict[str, Any]) -> None:
    before = copy.deepcopy(data)
    job = load_job(data)
    assert data == before
    assert job == CommandJob(**data)
    plain = job.to_dict()
    assert load_job(plain).to_dict() == plain
    assert load_job(json.loads(json.dumps(plain))) == job
    assert copy.deepcopy(job) == job
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "job.yml")
        job.dump(file)
        again = load_job(file)
        assert again == job
        again.base_path = os.getcwd()
        again.dump(file, overwrite=True)
        assert load_job(file) == again
    assert all(len(str(finding)) <= LIMIT for finding in job.findings())


# -- the schema ------------------------------------------------------------------------------------------------------

SCHEMA = job_schema()
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
WRONG = [None, -3, 2.5, True, "wrong value", [], [1], {}, {"type": "wrong"}, {"unknown_key": 1}]


def test_the_schema_is_a_schema_and_takes_the_job_files() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    for file in FILES:
        errors = list(VALIDATOR.iter_errors(yaml.safe_load(file.read_text().replace("2024-01-01", "'2024-01-01'"))))
        tolerated = ["tensorflow.yml"] if errors else []
        assert file.name in tolerated or not errors, (file, errors[0].message)


@pytest.mark.slow
@settings(many, max_examples=300)
@given(jobs, st.data())
def test_the_schema_agrees_with_the_loader(data: dict[str, Any], draw: st.DataObject) -> None:
    assert VALIDATOR.is_valid(data)
    place = data
    key = draw.draw(st.sampled_from([*sorted(data), "unknown_key"]), "key")
    while isinstance(place.get(key), dict) and place[key] and draw.draw(st.booleans(), "go on"):
        place = place[key]
        key = draw.draw(st.sampled_from([*sorted(place), "unknown_key"]), "key")
    place[key] = draw.draw(st.sampled_from(WRONG), "value")
    job, findings = read_job(data, strict=True, judge=False)
    if data["command"] is None:
        return  # a rule of the job, not of a field
    assert VALIDATOR.is_valid(data) == (job is not None), [str(finding) for finding in findings]


# -- documents that are anything -------------------------------------------------------------------------------------


def judged(content: bytes) -> None:
    """Reads a document as `jobsdk job validate` does, and looks at what comes of it."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "job.yml")
        Path(file).write_bytes(content)
        job, findings = read_job(file)
        for finding in findings:
            assert 0 < len(str(finding)) <= LIMIT
            assert "\n" not in str(finding)
            json.dumps(finding.to_dict())
        if job is None:
            assert any(finding.is_error for finding in findings)
        else:
            job.dump(file, overwrite=True)
            assert load_job(file) == job


yaml_like = st.text("abc:-[]{}&*!|>'\"%@`#,?<= \n\t\r0.~$\\é\x00\u2028", max_size=60)


@many
@given(st.binary(max_size=80) | texts.map(str.encode) | yaml_like.map(str.encode))
def test_garbage_never_gives_a_traceback(content: bytes) -> None:
    judged(content)


@pytest.mark.slow
@many
@given(st.sampled_from(FILES), st.data())
def test_broken_job_files_never_give_a_traceback(file: Path, draw: st.DataObject) -> None:
    content = file.read_bytes()
    for _ in range(draw.draw(st.integers(1, 3))):
        start = draw.draw(st.integers(0, len(content)))
        end = draw.draw(st.integers(start, min(len(content), start + 20)))
        content = content[:start] + draw.draw(yaml_like | st.just("")).encode()[:12] + content[end:]
    judged(content)


keys = st.sampled_from(
    [*CommandJob._fields, "instance_count", "type", "path", "mode", "process_count_per_instance", "$schema", "id", "x"]
)
documents = st.dictionaries(
    keys,
    st.recursive(
        anything | st.sampled_from(["pytorch", "ssh", "uri_file", "${{inputs.x}}", "file:x"]),
        lambda inner: st.dictionaries(keys | names, inner, max_size=4) | st.lists(inner, max_size=2),
        max_leaves=8,
    ),
    max_size=8,
)


@pytest.mark.slow
@many
@given(documents)
def test_wrong_types_everywhere_never_give_a_traceback(data: dict[str, Any]) -> None:
    judged(yaml.safe_dump(data, allow_unicode=True).encode())
    job, findings = read_job(data)
    assert job is not None or findings
