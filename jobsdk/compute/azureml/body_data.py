"""The inputs, outputs and the environment of a job as Azure ML's REST interface has them.

Local files are named by their content, as they will be when they have been uploaded. What only the service knows, the
version that a label stands for, keeps its name: `azureml:name@label`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from jobsdk.compute.azureml import hashes
from jobsdk.errors import JobsdkError
from jobsdk.job.environment import Environment, is_file
from jobsdk.job.expressions import text_of
from jobsdk.job.io import Input, Output
from jobsdk.job.paths import is_local

if TYPE_CHECKING:
    from jobsdk.compute.azureml.workspace import Workspace
    from jobsdk.job.command import CommandJob

#: The datastore that local inputs go to, where none is named.
DATASTORE = "workspaceblobstore"
#: What stands for an environment whose name only its upload tells.
ENVIRONMENT = "azureml:environment-of-this-job"

_INPUT_MODES = {
    "ro_mount": "ReadOnlyMount",
    "download": "Download",
    "direct": "Direct",
    "eval_mount": "EvalMount",
    "eval_download": "EvalDownload",
}
_OUTPUT_MODES = {"rw_mount": "ReadWriteMount", "upload": "Upload", "direct": "Direct"}
#: Azure ML has models and data; azure-ai-ml takes models of the type triton_model for data.
_MODELS = ("mlflow_model", "custom_model")


def inputs(job: CommandJob, workspace: Workspace) -> dict[str, Any]:
    """The inputs that are given. Raises JobsdkError if a local one cannot be read."""
    return {name: _input(job, name, item, workspace) for name, item in job.given_inputs().items()}


def _input(job: CommandJob, name: str, item: Any, workspace: Workspace) -> dict[str, Any]:
    if not isinstance(item, Input):
        return {"value": text_of(item), "jobInputType": "literal"}
    if item.path is None:
        raise JobsdkError(f"inputs.{name}: has no path. Fix: add 'path: ...'")
    body = {"uri": _uri(job, item.path, item, workspace)}
    if item.mode is not None:
        body["mode"] = _INPUT_MODES[item.mode]
    return {**body, "jobInputType": item.type}


def _uri(job: CommandJob, path: str, item: Input, workspace: Workspace) -> str:
    if is_local(path):
        local = job.resolve(path)
        if not local.exists():
            return str(local)  # a path of the job's nodes
        end = "/" if item.type == "uri_folder" else ""
        store = item.datastore or DATASTORE
        return f"azureml://datastores/{store}/paths/LocalUpload/{hashes.content(local)}/{local.name}{end}"
    kind = "models" if item.type in _MODELS else "data"
    return asset(path, kind, workspace)


def asset(name: str, kind: str, workspace: Workspace) -> str:
    """The id of an asset that is named `azureml:name:version` or by its id; other names and URIs stay as they are."""
    short = name.removeprefix("azureml:")
    if short.lower().startswith("/subscriptions/"):
        return short
    match = re.fullmatch(r"([^/:@]+):([^/@]+)", short)
    if match is None or (kind in ("models", "data") and short == name):
        return name
    return f"{workspace.id}/{kind}/{match[1]}/versions/{match[2]}"


def outputs(job: CommandJob) -> dict[str, Any]:
    """The outputs of a job."""
    return {name: _output(output) for name, output in job.outputs.items()}


def _output(output: Output) -> dict[str, Any]:
    body = {
        "uri": output.path,
        "mode": _OUTPUT_MODES[output.mode] if output.mode is not None else None,
        "assetName": output.name,
        "assetVersion": output.version,
        "description": output.description,
    }
    return {**{name: value for name, value in body.items() if value is not None}, "jobOutputType": output.type}


def environment(job: CommandJob, workspace: Workspace) -> str:
    """The id of the job's environment. Raises JobsdkError if it has none that Azure ML could run, or no such file."""
    given = job.environment
    if isinstance(given, str) and not is_file(given):
        short = given.removeprefix("azureml:")
        is_curated = short.startswith("AzureML-")  # these are found by the service
        if is_curated or re.fullmatch(r"(?!//)[^/]+@[^/@]+", short):
            return f"azureml:{short}"
        return asset(given, "environments", workspace)
    source, inline = described(job)
    if inline.name is not None and inline.version is not None:
        return f"{workspace.id}/environments/{inline.name}/versions/{inline.version}"
    version = _version(source, inline)
    return f"{workspace.id}/environments/{hashes.ANONYMOUS}/versions/{version}" if version else ENVIRONMENT


def described(job: CommandJob) -> tuple[CommandJob, Environment]:
    """The environment that the job or a file of its own describes, and a job whose paths begin where its paths do.

    Raises JobsdkError if there is none, or if Azure ML could make no image of it.
    """
    import copy

    given, source = job.environment, job
    if isinstance(given, str):
        from jobsdk.job.yaml_file import read_environment

        file = job.resolve(given)
        given, findings = read_environment(file)
        if given is None:
            raise JobsdkError(str(next(finding for finding in findings if finding.is_error)))
        source = copy.copy(job)
        source.base_path = file.parent
        given.name = given.version = None  # they are for who registers it
    if given is None:
        raise JobsdkError(
            "environment: is missing, and Azure ML needs one. Fix: write environment: {image: ...} or "
            "azureml:name:version, or set `image` for the compute"
        )
    if given.image is None and given.build is None:
        raise JobsdkError("environment: names no image, and Azure ML needs one. Fix: add image: or build:")
    if given.image is not None and given.build is not None:
        raise JobsdkError("environment: has both an image and a build folder. Fix: keep one of the two")
    return source, given


def _version(job: CommandJob, environment: Environment) -> str | None:
    """The version of an environment without a name, which is its content; None where that is not known here."""
    if environment.inference_config is not None:
        return None
    if environment.build is not None:
        path = environment.build.path
        if path is None or not is_local(path):
            return None
        return hashes.of_build(job.resolve(path), environment.build.dockerfile_path)
    assert environment.image is not None
    return hashes.of_image(environment.image, conda(job, environment))


def conda(job: CommandJob, environment: Environment) -> Any:
    """The content of an environment's conda file, or None. Raises JobsdkError."""
    given = environment.conda_file
    if not isinstance(given, str):
        return given
    import yaml

    file = job.resolve(given)
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise JobsdkError(f"environment.conda_file: {file} cannot be read: {' '.join(str(error).split())}") from None
