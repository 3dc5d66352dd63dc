"""The software that a job runs in: a container image, packages, or the name of an environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jobsdk.findings import Path, Report
from jobsdk.job.kinds import AsText, Kind, LocalPath, MappingOf, PathOrMapping, PlainMapping, Rewrite, Schema, Text
from jobsdk.job.model import Model, Nested, field, reference
from jobsdk.job.paths import is_file_uri

_NAME = r"[A-Za-z0-9][\w. -]*"
#: With the prefix, azure-ai-ml takes any name and version without a slash; what follows the last @ is a label.
_ASSET = r"azureml:(?!azureml:)(?:[^/:@\s][^/:@]*:[^/@\s][^/@]*|[^/@\s][^/]*@[^/@\s][^/@]*)"

_HINTS = {"conda": "conda_file", "docker_image": "image", "dockerfile": "build", "pip": "requirements"}


class BuildContext(Model):
    """A folder with a Dockerfile, as Azure ML has it."""

    path: str | None = field(LocalPath(empty=False), default=None, doc="The folder, relative to the job file.")
    dockerfile_path: str | None = field(
        Text(empty=False), default=None, doc="The Dockerfile in it. Not given: Dockerfile."
    )


class Environment(Model, hints=_HINTS):
    """An environment written in the job. Fields are Azure ML's, except `requirements`, which is jobsdk's own."""

    _ignored = frozenset(("$schema", "creation_context", "intellectual_property", "latest_version"))

    name: str | None = field(Text(empty=False), default=None, doc="Its name.")
    version: str | None = field(AsText(), default=None, doc="Its version.")
    image: str | None = field(Text(empty=False), default=None, doc="The container image.")
    build: BuildContext | None = field(Nested(BuildContext), default=None, doc="The folder to build the image from.")
    conda_file: str | dict[str, Any] | None = field(
        PathOrMapping(empty=False), default=None, doc="A conda environment: the path of its file, or its content."
    )
    requirements: str | None = field(LocalPath(empty=False), default=None, doc="The path of a pip requirements file.")
    os_type: str | None = field(Text(choices=("Linux", "Windows")), default=None, doc="Linux or Windows.")
    inference_config: dict[str, Any] | None = field(
        PlainMapping(), default=None, doc="Kept for Azure ML; not used by jobs."
    )
    datastore: str | None = field(
        Text(empty=False), default=None, doc="The datastore that the build folder is uploaded to."
    )
    description: str | None = field(Text(), default=None, doc="What it is.")
    tags: dict[str, str | None] = field(MappingOf(AsText(none=True)), default_factory=dict, doc="Free-form tags.")
    properties: dict[str, str | None] = field(
        MappingOf(AsText(none=True)), default_factory=dict, doc="Free-form properties."
    )

    #: The name that a job file gave it.
    _unused_name: str | None = None

    def make_anonymous(self, path: Path, report: Report) -> None:
        """Drop name and version with a warning, as azure-ai-ml does with environments that are part of a job file."""
        if self.name is None and self.version is None:
            return
        name = self.name or "NAME"
        object.__setattr__(self, "_unused_name", f"{name}:{self.version}" if self.version else name)
        self.name = self.version = None
        self._warn_of_unused_name(path, report)

    def check(self, path: Path, report: Report) -> None:
        """Judges the fields again, and repeats that a name is not used."""
        super().check(path, report)
        self._warn_of_unused_name(path, report)

    def _warn_of_unused_name(self, path: Path, report: Report) -> None:
        if self._unused_name is not None:
            message = "its name and version are not used: an environment in a job file is anonymous"
            fix = "remove them" + (f", or write azureml:{self._unused_name}" if ":" in self._unused_name else "")
            report.warn(path, message, fix, key=True)


class EnvironmentKind(Kind):
    """An `Environment`, or text that names one."""

    says = "the name of an environment, a mapping or Environment(...)"
    _REFERENCE = (
        rf"{_ASSET}|(?!azureml:){_NAME}(:[\w.+][\w.+: -]*|@[\w.-]+)"
        r"|azureml://\S.*|(azureml:)?/subscriptions/\S.*|[fF][iI][lL][eE]:.*\S.*"
    )

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if isinstance(value, str):
            return self._name(Text(empty=False).structure(value, path, report), path, report)
        if isinstance(value, Environment | Mapping):
            return Nested(Environment).structure(value, path, report)
        return self.refuse(value, path, report)

    def _name(self, text: Any, path: Path, report: Report) -> Any:
        if not isinstance(text, str) or re.fullmatch(self._REFERENCE, text):
            return text
        if re.fullmatch(rf"(azureml:)?{_NAME}", text) and not re.search(r"\.ya?ml$", text):
            return self.refuse(text, path, report, f"add a version or a label: '{text}:1' or '{text}@latest'")
        if re.search(r"\.(ya?ml|txt)$", text):
            return self.refuse(text, path, report, f"write 'file:{text}' for an environment file, or use conda_file:")
        if "/" in text:
            return self.refuse(text, path, report, "write {image: ...} for a container image")
        return self.refuse(text, path, report, "write azureml:name:version, or {image: ...} for a container image")

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "string", "pattern": f"^(?:{self._REFERENCE})$"}, reference(Environment)]}

    def dump(self, value: Any, rewrite: Rewrite | None = None) -> Any:
        if isinstance(value, Environment):
            return value.to_dict(rewrite)
        return rewrite(value) if rewrite and is_file_uri(value) else value


def is_file(reference: object) -> bool:
    """Whether the name of an environment is `file:` and the path of an environment's own YAML file."""
    return is_file_uri(reference)
