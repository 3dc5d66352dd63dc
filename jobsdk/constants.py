"""The constants that Azure ML notebooks import from `azure.ai.ml.constants`, as far as jobs need them."""

from __future__ import annotations


class AssetTypes:
    """Types of inputs and outputs that are files or folders."""

    URI_FILE = "uri_file"
    URI_FOLDER = "uri_folder"
    MLTABLE = "mltable"
    MLFLOW_MODEL = "mlflow_model"
    CUSTOM_MODEL = "custom_model"
    TRITON_MODEL = "triton_model"


class InputOutputModes:
    """How data reaches a node or leaves it."""

    MOUNT = "mount"
    DOWNLOAD = "download"
    UPLOAD = "upload"
    RO_MOUNT = "ro_mount"
    RW_MOUNT = "rw_mount"
    EVAL_MOUNT = "eval_mount"
    EVAL_DOWNLOAD = "eval_download"
    DIRECT = "direct"


class JobType:
    """Types of jobs."""

    COMMAND = "command"


class DistributionType:
    """Types of distributions."""

    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    MPI = "mpi"
    DEEPSPEED = "deepspeed"
    RAY = "ray"


class ListViewType:
    """Which runs a listing shows."""

    ACTIVE_ONLY = "ActiveOnly"
    ARCHIVED_ONLY = "ArchivedOnly"
    ALL = "All"
