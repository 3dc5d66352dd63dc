"""The settings of a compute of type `azureml`: their names, their forms, what a job may say of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jobsdk.compute.azureml.workspace import KEYS, Workspace, from_config, from_mapping
from jobsdk.errors import ComputeError, JobsdkError

LAUNCHERS = ("native", "bootstrap")
SETTINGS: Mapping[str, str] = {
    "subscription_id": "the subscription of the workspace",
    "resource_group": "the resource group of the workspace",
    "workspace_name": "the workspace",
    "config": "in place of these three: the path of a config.json, or of the folder that it is in or below",
    "target": "the compute's name in the workspace, or serverless; not given: the entry's own name",
    "launcher": "native: Azure ML starts the ranks; bootstrap: jobsdk does; not given: native, but for DeepSpeed",
    "image": "the container image of jobs that name no environment",
    "environment": "the environment of jobs that name none, as azureml:NAME:VERSION",
    "datastore": "where local inputs are uploaded to; not given: workspaceblobstore",
    "mend_tf_config": "false: TF_CONFIG stays as Azure ML writes it, with an empty list of parameter servers",
    "python": "the Python of the bootstrap on the nodes, 3.8 or later; not given: python3",
    "preload": "modules that each node imports once, for jobs that say nothing of it; bootstrap only",
}
#: Those that a job's own `resources.properties.azureml` may have, too.
OF_JOB = ("launcher", "mend_tf_config", "python")
_FLAGS = ("mend_tf_config",)
_TARGET = r"(?i:(virtualclusters/)?[\w.-]+|/subscriptions/\S+)"


def mistakes(settings: Mapping[str, Any], *, of_job: bool = False) -> Iterator[tuple[str, str]]:
    """What is wrong: (setting, words)."""
    from jobsdk.findings import no_setting_of_a_job

    known = OF_JOB if of_job else tuple(SETTINGS)
    for name, value in settings.items():
        if name not in known:
            yield str(name), no_setting_of_a_job(name, known)
        elif name in _FLAGS:
            if not isinstance(value, bool):
                yield name, f"must be true or false, not {value!r}"
        elif name == "launcher":
            if value not in LAUNCHERS:
                yield name, f"must be {' or '.join(LAUNCHERS)}, not {value!r}"
        elif name == "preload":
            if not isinstance(value, str | list):
                yield name, f"must be the name of a module, or a list of names, not {value!r}"
        elif not isinstance(value, str) or not value:
            yield name, f"must be a text, not {value!r}"
        elif name == "target" and not re.fullmatch(_TARGET, value):
            yield name, f"must be a compute's name, serverless, virtualClusters/NAME or a resource id, not {value!r}"
    if not of_job and "image" in settings and "environment" in settings:
        yield "image", "and environment are given: one of both must go"


def workspace(name: str, settings: Mapping[str, Any]) -> Workspace:
    """The workspace of the compute `name`. Raises ComputeError.

    Without a word of it in the settings it is that of a config.json in the working directory or above, as for
    azure-ai-ml.
    """
    given = [key for key in KEYS if key in settings]
    try:
        if given:
            return from_mapping(settings, f"compute {name}")
        return from_config(settings.get("config"))
    except JobsdkError as error:
        text = str(error)
        raise ComputeError(text if text.startswith("compute ") else f"compute {name}: {text}") from None
