"""The JSON Schema of job files, for editors. It is made of the kinds that judge jobs, so the two agree."""

from __future__ import annotations

from typing import Any

from jobsdk.job.command import CommandJob
from jobsdk.job.distribution import DISTRIBUTIONS
from jobsdk.job.environment import BuildContext, Environment
from jobsdk.job.identity import IDENTITY
from jobsdk.job.io import Input, Output
from jobsdk.job.model import Model
from jobsdk.job.resources import CommandJobLimits, JobResourceConfiguration, QueueSettings
from jobsdk.job.scaling import ScalingConfig, TorchConfig
from jobsdk.job.services import SERVICE

_UNTYPED: tuple[type[Model], ...] = (
    Input, Output, Environment, BuildContext, JobResourceConfiguration, CommandJobLimits, QueueSettings,
    ScalingConfig, TorchConfig,
)  # fmt: skip


def job_schema() -> dict[str, Any]:
    """The JSON Schema (draft 7, which editors know best) of what `load_job` takes with `strict=True`.

    What depends on several fields or on files is not in it; `jobsdk job validate` says that.
    """
    typed: list[type[Model]] = [*DISTRIBUTIONS, *SERVICE.models, *IDENTITY.models]
    definitions = {model.__name__: model.schema() for model in (*_UNTYPED, *typed)}
    for model in typed:
        definition = definitions[model.__name__]
        definition["required"] = ["type"]
        definition["properties"]["type"] = model._fields["type"].kind.schema()
    job = CommandJob.schema()
    job["properties"]["command"] = CommandJob._fields["command"].kind.schema()
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A job of jobsdk",
        **job,
        "required": ["command"],
        "definitions": definitions,
    }
