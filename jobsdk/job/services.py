"""Interactive services beside a job, as Azure ML has them."""

from __future__ import annotations

from typing import Any

from jobsdk.job.kinds import Integer, PlainMapping, Text, TypeName
from jobsdk.job.model import Model, Tagged, field


class JobService(Model):
    """The base of services: what all of them take."""

    _ignored = frozenset(("$schema", "endpoint", "error_message", "status"))

    type: str = field(Text(), default=None)
    port: int | None = field(Integer(1, 65535), default=None, doc="The port that the service listens on.")
    nodes: str | None = field(Text(choices=("all",)), default=None, doc="all: on every node. Not given: on node 0.")
    properties: dict[str, Any] | None = field(
        PlainMapping(), default=None, doc="Further settings, in the service's own words."
    )


class SshJobService(JobService):
    """Access by ssh to the job's containers."""

    type: str = field(TypeName("ssh"), default="ssh", doc="ssh")
    ssh_public_keys: str | None = field(Text(empty=False), default=None, doc="The public key that may log in.")


class JupyterLabJobService(JobService):
    """JupyterLab in the job's container."""

    type: str = field(TypeName("jupyter_lab"), default="jupyter_lab", doc="jupyter_lab")


class TensorBoardJobService(JobService):
    """TensorBoard in the job's container."""

    type: str = field(TypeName("tensor_board"), default="tensor_board", doc="tensor_board")
    log_dir: str | None = field(Text(empty=False), default=None, doc="The folder in the container that it reads.")


class VsCodeJobService(JobService):
    """VS Code connected to the job's container."""

    type: str = field(TypeName("vs_code"), default="vs_code", doc="vs_code")


SERVICE = Tagged(
    "a mapping with a type, or a service object",
    SshJobService,
    JupyterLabJobService,
    TensorBoardJobService,
    VsCodeJobService,
)
