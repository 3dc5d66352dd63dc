"""What alone may differ between the bodies of jobsdk and of azure-ai-ml: what is made at random, or by the service."""

from __future__ import annotations

import copy
import re
from typing import Any

from jobsdk import CommandJob
from jobsdk.compute.azureml.body import CODE, rest_body
from jobsdk.compute.azureml.compute import AzureMlCompute
from jobsdk.job import durations
from jobsdk.job.yaml_file import read_environment
from jobsdk.planning.plan import make_plan
from tests.azureml.captured import LATEST, WORKSPACE

_RUN = "the-run"
_LABEL = "azureml:(?!AzureML-)([^/:@]+)@[^/]+"
_UPLOADED = re.escape(WORKSPACE.id) + "/codes/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/versions/1"


def ours(job: CommandJob) -> dict[str, Any]:
    """The body of jobsdk, with the versions that the service would find for labels."""
    return _found(rest_body(job, WORKSPACE, target=job.compute))


def compiled(job: CommandJob) -> dict[str, Any]:
    """The same by the whole way of `job compile`, on a compute that leaves TF_CONFIG as Azure ML gives it: the one
    that the job names, as a client of the workspace has it."""
    name = (job.compute or "serverless").removeprefix("azureml:")
    compute = AzureMlCompute(name, {**WORKSPACE._asdict(), "mend_tf_config": False})
    plan, at = make_plan(job, name=_RUN), compute.place(job)
    assert not [one for one in compute.findings(job, plan, at) if one.is_error]
    body: dict[str, Any] = compute.compile(job, plan, at)["body"]
    properties = body["properties"]
    if properties["displayName"] == _RUN and job.display_name != _RUN:  # the run has a name where the job has none
        del properties["displayName"]
        properties.update({"displayName": job.name} if job.name else {})
    return _found(body)


def _found(body: dict[str, Any]) -> dict[str, Any]:
    properties = body["properties"]
    properties["environmentId"] = _resolved(properties["environmentId"], "environments")
    for item in properties["inputs"].values():
        if "uri" in item:
            kind = "models" if item["jobInputType"] in ("mlflow_model", "custom_model") else "data"
            item["uri"] = _resolved(item["uri"], kind)
    return body


def _resolved(name: str, kind: str) -> str:
    match = re.fullmatch(_LABEL, name)
    return f"{WORKSPACE.id}/{kind}/{match[1]}/versions/{LATEST}" if match else name


def theirs(sent: dict[str, Any], job: CommandJob) -> dict[str, Any]:
    """The body of azure-ai-ml without what it makes at random: the code's id, and a name where none was given."""
    properties = dict(sent["properties"])
    if re.fullmatch(_UPLOADED, properties.get("codeId", "")):
        properties["codeId"] = CODE
    if not job.name and not job.display_name:
        assert re.fullmatch(r"[a-z]+_[a-z]+_[a-z0-9]{10}", properties.pop("displayName"))
    return {"properties": properties}


def normal(job: CommandJob) -> dict[str, Any]:
    """The job as plain data, without what azure-ai-ml's objects cannot tell apart: whether a name has the prefix
    `azureml:`, where an environment was described, whether resources have properties that are empty,
    and parts of seconds."""
    job = copy.deepcopy(job)
    if job.compute:
        job.compute = job.compute.removeprefix("azureml:")
    if isinstance(job.environment, str) and job.environment.startswith("file:"):
        file = job.resolve(job.environment)
        environment, _ = read_environment(file)
        assert environment is not None
        data = environment.to_dict(lambda path: str(file.parent / path))
        job.environment = {name: value for name, value in data.items() if name not in ("name", "version")}
    data = job.to_dict(lambda path: str(job.resolve(path)))
    if isinstance(data.get("environment"), dict) and "version" not in data["environment"]:
        data["environment"].pop("name", None)  # a name alone is not used
    if "timeout" in data.get("limits", {}):
        data["limits"]["timeout"] = durations.whole(data["limits"]["timeout"])
    if data.get("resources", {}).get("properties") == {}:
        del data["resources"]["properties"]
    return data
