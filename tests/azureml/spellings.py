"""Job files in every spelling that azure-ai-ml's own schema takes: which letter cases an enum may have, which texts
stand for numbers, which keys it ignores. What values mean anything is in tables here; how they are written, it says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

_URI = "https://host.example/data/file.csv"
#: Values of text, by the end of their place in the file.
_TEXTS: dict[str, list[Any]] = {
    "command": ["nvidia-smi", "echo {inputs.a} && echo ${{ inputs.a }}"],
    "image": ["ubuntu:22.04"],
    "nodes": ["all"],
    "shm_size": ["2g", "100M"],
    "instance_type": ["Standard_NC6", "a kind of machine"],
    "build.path": ["context", "./context/"],
    "dockerfile_path": ["other/Dockerfile.gpu"],
    "conda_file": ["conda.yml", {"name": "n", "dependencies": ["python"]}],
    "compute": ["cpu-cluster", "azureml:cpu-cluster", "virtualClusters/vc", "serverless"],
    "code": ["src", "src/train.py", "https://host.example/code.zip"],
    "name": ["a-name", "name_1"],
    "version": ["1", 1, "1.0"],
    "outputs.*.path": ["azureml://datastores/store/paths/out"],
    "inputs.*.value": ["a text", "1", True, False, 2, -3],  # of others azure-ai-ml makes other values
    "inputs.*.path": [
        *(_URI, "wasbs://c@account.blob.core.windows.net/a", "azureml://datastores/store/paths/a b"),
        *("azureml:data:1", "azureml:data:1:2", "azureml:my data:1", "azureml:my data@latest"),
    ],
    "environment": [
        *("azureml:env:1", "azureml:env:1:2", "azureml:an env:a version", "azureml:an env@latest"),
        *("azureml:AzureML-curated:1", "azureml:AzureML-curated@latest"),
        "azureml://registries/azureml/environments/n/versions/1",
    ],
    "environment_variables": [{}, {"A": "b", "C": ""}],
    "services.*.properties": [{}, {"a": "b"}],
    "resources.properties": [{}, {"ITP": {"a": 1}}, {"Singularity": {"imageVersion": "x"}}],
    "tags": [{}, {"a": None, "b c": "d"}],
    "environment.tags": [{}, {"a": "b"}],
    "job.properties": [{}, {"a": None}, {"_azureml.ComputeTargetType": "amlcdsi"}],
}
#: Numbers: the least one, and the largest.
_NUMBERS = {"port": (1, 65535), "worker_count": (1, 1), "parameter_server_count": (0, 4)}
#: What azure-ai-ml's loader takes and jobsdk does not: see "What is refused" in docs/azureml-differences.md.
_LEFT_OUT = {"auto_delete_setting", "environment.id", "msi_resource_id", "path_on_compute", "inference_config"}


def _cases(name: str, transform: Callable[[str], str], allowed: list[str]) -> list[str]:
    """The ways to write a name of an enum that its field takes."""
    words = name.split("_")
    camel = words[0] + "".join(word.title() for word in words[1:])
    tries = {name, name.upper(), name.title(), name.swapcase(), name.capitalize(), camel, camel[0].upper() + camel[1:]}
    tries |= {"".join(word.title() for word in words), "".join(word.upper() for word in words), camel.upper()}
    tries |= {"".join(char.upper() if at % 2 else char for at, char in enumerate(name)), "AMLToken"}
    return sorted(one for one in tries if transform(one) in allowed)


def _find(table: Any, path: str) -> Any:
    """The entry of a table whose key is the end of a path; the longest one."""
    fitting = [key for key in table if f".job.{path}".endswith(f".{key}")]
    return max(fitting, key=len, default=None)


def _number(path: str) -> st.SearchStrategy[Any]:
    least, most = _NUMBERS.get(path.rpartition(".")[2], (1, 64))
    numbers = st.integers(least, most)
    more = [st.just(30.5)] if path == "limits.timeout" else [numbers.map(lambda number: f"+{number}")]
    return st.one_of(numbers, numbers.map(str), numbers.map(float), numbers.map(lambda number: f" {number} "), *more)


def _spelled(field: Any, path: str) -> st.SearchStrategy[Any]:
    from azure.ai.ml._schema.core import fields as own
    from marshmallow import fields

    if isinstance(field, own.ExperimentalField):
        return _spelled(field.experimental_field, path)
    if path == "type":  # looked at before the schema is, as it stands
        return st.just("command")
    if isinstance(field, own.StringTransformedEnum):
        names = [
            case for name in field.allowed_values for case in _cases(name, field.casing_transform, field.allowed_values)
        ]
        return st.sampled_from(names)
    if isinstance(field, fields.Boolean) and not path.startswith("inputs."):
        return st.sampled_from(sorted({*field.truthy, *field.falsy, True, False}, key=repr))
    if isinstance(field, fields.Nested):
        return _mapping(field.schema, path)
    known = _find(_TEXTS, path)
    if isinstance(field, own.UnionField):
        union = list(field.union_fields)
        if path == "services.*":
            union = union[:-1]  # the last is for services that the system adds
        if path == "environment_variables":
            union = [one for one in union if isinstance(one, fields.Dict)]  # the other is for pipelines
        if known is None or any(isinstance(one, fields.Nested) for one in union):
            return st.one_of(*(_spelled(one, path) for one in union))
        enums = [_spelled(one, path) for one in union if isinstance(one, own.StringTransformedEnum)]
        return st.one_of(st.sampled_from(_TEXTS[known]), *enums)
    if known is not None:
        return st.sampled_from(_TEXTS[known])
    if isinstance(field, fields.Boolean):
        return st.booleans()
    if isinstance(field, own.DumpableIntegerField):
        return st.integers(-5, 5)
    if isinstance(field, fields.Integer):
        return _number(path)
    if isinstance(field, fields.Float):
        return st.sampled_from([0.5, 2.0, 1e-5])
    if isinstance(field, fields.Dict):
        names = st.sampled_from(["a", "B_1"])
        return st.dictionaries(names, _spelled(field.value_field, f"{path}.*"), max_size=2)
    if isinstance(field, fields.List):
        return st.lists(_spelled(field.inner, path), min_size=1, max_size=2)
    assert isinstance(field, fields.String | own.ArmStr), f"{path}: {field}"
    return st.sampled_from(["a text", "true", "1", "x: y"])


def _mapping(schema: Any, path: str) -> st.SearchStrategy[Any]:
    from azure.ai.ml._schema.core.schema import PathAwareSchema

    needed, optional = {}, {}
    for name, field in schema.fields.items():
        where = f"{path}.{name}".removeprefix("job.")
        if _find(_LEFT_OUT, where):
            continue
        if field.dump_only:
            if isinstance(schema, PathAwareSchema):
                optional[field.data_key or name] = st.sampled_from(["ignored", {"also": "ignored"}])
        elif field.required or where in ("services.*.type", "inputs.*.type") or where.endswith((".path", ".value")):
            needed[name] = _spelled(field, where)
        else:
            optional[name] = _spelled(field, where)
    found = st.fixed_dictionaries(needed, optional=optional)
    return found.map(_sound[path]) if path in _sound else found


def _environment(data: dict[str, Any]) -> dict[str, Any]:
    """An environment that an image can be made of."""
    if "image" in data:
        return {name: value for name, value in data.items() if name != "build"}
    data.setdefault("build", {"path": "context"})
    return {name: value for name, value in data.items() if name != "conda_file"}


def _output(data: dict[str, Any]) -> dict[str, Any]:
    """A version belongs to a name."""
    return data if "name" in data else {name: value for name, value in data.items() if name != "version"}


def _job(data: dict[str, Any]) -> dict[str, Any]:
    """The command names an input: it is declared."""
    data["inputs"] = {"a": 1, **data.get("inputs", {})}
    return data


_sound: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "environment": _environment,
    "outputs.*": _output,
    "job": _job,
}


@functools.cache
def jobs() -> st.SearchStrategy[dict[str, Any]]:
    """A job file's data."""
    from azure.ai.ml._schema.job.command_job import CommandJobSchema

    return _mapping(CommandJobSchema(context={"base_path": Path()}), "job")
