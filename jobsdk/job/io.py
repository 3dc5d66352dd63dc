"""Inputs and outputs of a job, and the rule that tells local paths from URIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobsdk.findings import Path, Report
from jobsdk.job.kinds import (
    AsText,
    Flag,
    Kind,
    LocalPath,
    MappingOf,
    PlainMapping,
    Rewrite,
    Schema,
    Text,
    is_scalar,
    path_text,
    whole,
)
from jobsdk.job.model import Model, Nested, field, reference
from jobsdk.job.paths import is_local as is_local

#: Types of inputs and outputs that are files or folders (Azure ML's).
ASSET_TYPES = ("uri_file", "uri_folder", "mltable", "mlflow_model", "custom_model", "triton_model")
#: Types of inputs that are values; `Input(type="integer", default=3)` stands for the literal 3.
VALUE_TYPES = ("string", "integer", "number", "boolean")
NAME = "[a-zA-Z_][a-zA-Z0-9_]*"

Value = str | int | float | bool


class Input(Model):
    """An input of a job that is a file, a folder or a URI. Fields are Azure ML's.

    Local paths are relative to the job file, or in Python to the working directory. A value (`type` string, integer,
    number or boolean) is better written as a plain literal: `epochs: 3`.
    """

    type: str = field(Text(choices=(*ASSET_TYPES, *VALUE_TYPES)), default="uri_folder", doc="What the path leads to.")
    path: str | None = field(
        LocalPath(empty=False),
        default=None,
        doc="A local path, `file:`, `https:`, a storage URI, or `azureml:name:version`.",
    )
    mode: str | None = field(
        Text(
            choices=("ro_mount", "download", "direct", "eval_mount", "eval_download"),
            aliases={"mount": "ro_mount"},
        ),
        default=None,
        doc="How it reaches the node: ro_mount (the service's default), download, direct (the URI itself), eval_*.",
    )
    path_on_compute: str | None = field(
        Text(empty=False), default=None, doc="The path on the node at which to mount it."
    )
    datastore: str | None = field(
        Text(empty=False), default=None, doc="The datastore that a local path is uploaded to."
    )
    default: Value | None = field(AsText(), default=None, doc="The value, of a type that is a value.")
    optional: bool | None = field(
        Flag(), default=None, doc="Whether the input may be absent; see `$[[...]]` in commands."
    )
    min: Value | None = field(AsText(), default=None, doc="The least value; kept for components, not judged.")
    max: Value | None = field(AsText(), default=None, doc="The greatest value; kept for components, not judged.")
    enum: dict[str, Any] | None = field(
        PlainMapping(), default=None, doc="Allowed values; kept for components, not judged."
    )
    description: str | None = field(Text(), default=None, doc="What it is for.")

    @property
    def is_absent(self) -> bool:
        """Whether it is an optional input that has not been given."""
        return bool(self.optional) and self.path is None


class Output(Model):
    """A file or folder that a job writes. Fields are Azure ML's."""

    _ignored = frozenset(("$schema",))

    type: str = field(Text(choices=ASSET_TYPES), default="uri_folder", doc="What is written.")
    path: str | None = field(LocalPath(empty=False), default=None, doc="Where it is kept. Not given: with the run.")
    mode: str | None = field(
        Text(choices=("rw_mount", "upload", "direct"), aliases={"mount": "rw_mount"}),
        default=None,
        doc="How it leaves the node: rw_mount (the service's default), upload, direct.",
    )
    name: str | None = field(Text(empty=False), default=None, doc="Registers it as an asset of this name.")
    version: str | None = field(AsText(), default=None, doc="The version to register; needs `name`.")
    description: str | None = field(Text(), default=None, doc="What it is.")
    path_on_compute: str | None = field(
        Text(empty=False), default=None, doc="The path on the node at which to mount it."
    )


class Data(Model):
    """A data asset as Azure ML's notebooks describe it. As an input it stands for what its path leads to."""

    name: str | None = field(Text(empty=False), default=None, doc="Its name.")
    version: str | None = field(AsText(), default=None, doc="Its version.")
    type: str = field(Text(choices=("uri_file", "uri_folder", "mltable")), default="uri_folder", doc="What it is.")
    path: str | None = field(LocalPath(empty=False), default=None, doc="A local path or a URI.")
    description: str | None = field(Text(), default=None, doc="What it is for.")
    tags: dict[str, str | None] = field(MappingOf(AsText(none=True)), default_factory=dict, doc="Free-form tags.")
    properties: dict[str, str | None] = field(
        MappingOf(AsText(none=True)), default_factory=dict, doc="Free-form properties."
    )


class InputKind(Kind):
    """A literal, or an `Input`."""

    says = "a value, a mapping or Input(...)"

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if value is None:
            return self.refuse(value, path, report, "give it a value, or remove it")
        if isinstance(value, str):
            return Text().structure(value, path, report)
        if isinstance(value, Output | Data):
            return self._from_asset(value, path, report)
        if isinstance(value, Mapping) and set(value) == {"value"} and not isinstance(value["value"], Mapping):
            return self.structure(value["value"], path, report)  # another spelling of Azure ML's for a literal
        if isinstance(value, Input | Mapping):
            given = Nested(Input).structure(value, path, report)
            is_value = isinstance(given, Input) and given.type in VALUE_TYPES
            return self._literal(given, path, report) if is_value else given
        number = whole(value) if not isinstance(value, bool) else None
        if number is not None:
            return number
        if isinstance(value, float) and is_scalar(value):
            return float(value)
        fix = f"write '{value}' in quotes" if isinstance(value, float) else ""
        return value if isinstance(value, bool) else self.refuse(path_text(value), path, report, fix)

    def _from_asset(self, given: Output | Data, path: Path, report: Report) -> Any:
        """What an earlier job wrote, or a data asset, can be given as it is."""
        if given.path is None:
            what = "a path" if isinstance(given, Data) else "the path of a finished job's output"
            return self.refuse(given, path, report, f"give {what}")
        return Input(type=given.type, path=given.path)

    def _literal(self, given: Input, path: Path, report: Report) -> Any:
        """The literal that an input of a value type stands for; Azure ML's components declare such inputs."""
        if given.default is not None:
            return given.default
        if not given.optional:
            report.error(path, f"has the type {given.type} and no value", "write the value itself, as in 'epochs: 3'")
        return given

    def schema(self) -> Schema:
        return {"anyOf": [{"type": ["string", "number", "boolean"]}, reference(Input)]}

    def dump(self, value: Any, rewrite: Rewrite | None = None) -> Any:
        return value.to_dict(rewrite) if isinstance(value, Input) else value


class OutputKind(Nested):
    """An `Output`; nothing stands for a folder kept with the run."""

    def structure(self, value: Any, path: Path, report: Report) -> Any:
        if value is None:
            return Output()
        if isinstance(value, str):
            return self.refuse(value, path, report, "write it as {path: ...}")
        return super().structure(value, path, report)

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "null"}, super().schema()]}


_NAME_SAYS = "a letter or _ followed by letters, digits and _"
INPUTS = MappingOf(InputKind(), key_pattern=NAME, key_says=_NAME_SAYS)
OUTPUTS = MappingOf(OutputKind(Output), key_pattern=NAME, key_says=_NAME_SAYS)
