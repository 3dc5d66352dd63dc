"""The settings of a compute of type `azureml`: their names, their forms, what a job may say of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jobsdk.compute.azureml.workspace import KEYS, Workspace, from_config, from_mapping
from jobsdk.compute.settings import FLAG, TEXT, Setting, mistakes_in, must_be
from jobsdk.errors import ComputeError, JobsdkError

LAUNCHERS = ("native", "bootstrap")
_TARGET = r"(?i:(virtualclusters/)?[\w.-]+|/subscriptions/\S+)"
_LAUNCHER = must_be(" or ".join(LAUNCHERS), lambda value: value in LAUNCHERS)
_MODULES = must_be("the name of a module, or a list of names", lambda value: isinstance(value, str | list))


def _target(value: Any) -> str:
    if TEXT(value) or re.fullmatch(_TARGET, value):
        return TEXT(value)
    return "must be a compute's name, serverless, virtualClusters/NAME or a resource id"


SETTINGS: Mapping[str, Setting] = {
    "subscription_id": Setting("the subscription of the workspace", TEXT, False),
    "resource_group": Setting("the resource group of the workspace", TEXT, False),
    "workspace_name": Setting("the workspace", TEXT, False),
    "config": Setting(
        "in place of these three: the path of a config.json, or of the folder that it is in or below", TEXT, False
    ),
    "target": Setting(
        "the compute's name in the workspace, or serverless; not given: the entry's own name", _target, False
    ),
    "launcher": Setting(
        "native: Azure ML starts the ranks; bootstrap: jobsdk does; not given: native, but for DeepSpeed", _LAUNCHER
    ),
    "image": Setting("the container image of jobs that name no environment", TEXT, False),
    "environment": Setting("the environment of jobs that name none, as azureml:NAME:VERSION", TEXT, False),
    "datastore": Setting("where local inputs are uploaded to; not given: workspaceblobstore", TEXT, False),
    "mend_tf_config": Setting(
        "false: TF_CONFIG stays as Azure ML writes it, with an empty list of parameter servers", FLAG
    ),
    "python": Setting("the Python of the bootstrap on the nodes, 3.8 or later; not given: python3", TEXT),
    "preload": Setting(
        "modules that each node imports once, for jobs that say nothing of it; bootstrap only", _MODULES, False
    ),
}


def mistakes(settings: Mapping[str, Any], *, of_job: bool = False) -> Iterator[tuple[str, str]]:
    """What is wrong: (setting, words)."""
    yield from mistakes_in(SETTINGS, settings, of_job=of_job)
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
