"""Jobs that make a real all-reduce, on any compute, and what must come of it.

`sockets` needs no framework: it shows that an engine's nodes get the environment that `explain` shows, and reach each
other by it. What the frameworks do with that environment is the same everywhere, so they run on the local compute.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from jobsdk import (
    DeepSpeedDistribution,
    JobFailed,
    MLClient,
    MpiDistribution,
    PyTorchDistribution,
    TensorFlowDistribution,
    command,
)
from jobsdk.client.run import Run
from jobsdk.job.command import CommandJob
from tests.client.test_explain import NOT_OURS, as_pattern
from tests.extensions import compiled

#: Two processes a node; TensorFlow has one.
DISTRIBUTIONS: dict[str, Any] = {
    "sockets": PyTorchDistribution(process_count_per_instance=2),
    "pytorch": PyTorchDistribution(process_count_per_instance=2),
    "tensorflow": TensorFlowDistribution(),
    "mpi": MpiDistribution(process_count_per_instance=2),
    "deepspeed": DeepSpeedDistribution(process_count_per_instance=2),
}
_MPI = pytest.param("mpi", marks=pytest.mark.framework("mpi"))
#: The frameworks as parameters of a test, with what each needs.
KINDS = [
    pytest.param("pytorch", marks=pytest.mark.framework("torch")),
    pytest.param("tensorflow", marks=pytest.mark.framework("tensorflow")),
    _MPI,
    pytest.param("deepspeed", marks=[pytest.mark.framework("deepspeed"), pytest.mark.engine("compiler")]),
]
#: The same for an engine whose nodes are hosts of their own: mpirun reaches other hosts by another way than this one.
ON_HOSTS = ["sockets", _MPI]
_SCRIPTS = {
    "sockets": "sockets.py",
    "pytorch": "pytorch.py",
    "tensorflow": "tensorflow_.py",
    "mpi": "mpi.py",
    "deepspeed": "deepspeed_.py",
}
_QUIET = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "MINE": "a b $HOME 'c'"}


def job(kind: str, nodes: int, compute: str, python: str = "python", **fields: Any) -> CommandJob:
    """A job that makes the all-reduce of this kind. `python` is what the nodes have to run it."""
    return command(
        code=Path(__file__).parent,
        command=f"{python} {_SCRIPTS[kind]}",
        distribution=DISTRIBUTIONS[kind],
        instance_count=nodes,
        environment_variables={**_QUIET, **fields.pop("environment_variables", {})},
        compute=compute,
        **fields,
    )


def check(the_job: CommandJob) -> Run:
    """Run it: every rank has the sum over all ranks, and the environment that `explain` showed before."""
    shown = {process.rank: process for process in the_job.explain()}
    if str(the_job.command).endswith(_SCRIPTS["deepspeed"]):
        compiled()
    run = MLClient().jobs.create_or_update(the_job).wait(200)
    logs = {
        int(path.stem.rpartition("-")[2]): path.read_text("utf-8", "replace")
        for path in run.folder.logs.glob("node-*/rank-*.log")
    }
    try:
        run.result()
    except JobFailed as error:
        lines = (f"[{rank}] {line}" for rank in sorted(logs) for line in logs[rank].splitlines())
        text = "\n".join([str(error), *(line for line in lines if "] environ {" not in line)])
        raise AssertionError(text) from error
    size = len(shown)
    total = size * (size + 1) // 2
    assert sorted(logs) == list(range(size))
    for rank, log in logs.items():
        assert re.findall(r"^rank .* total .*$", log, re.MULTILINE) == [f"rank {rank} of {size} total {total}"]
        (text,) = re.findall(r"^environ (\{.*\})$", log, re.MULTILINE)
        _check_environment(json.loads(text), shown[rank].environment)
    return run


def _check_environment(actual: dict[str, str], shown: dict[str, str]) -> None:
    for name, value in shown.items():
        assert as_pattern(value).fullmatch(actual.get(name, "")), f"{name}: {actual.get(name)!r}, shown {value!r}"
    ours = {name for name in actual if name.startswith(("JOBSDK_", "AZURE", "AZ_BATCH", "MASTER_", "TORCH_", "NCCL_"))}
    left = {name for name in ours - set(shown) if not NOT_OURS.fullmatch(name)} - {
        "JOBSDK_HOME",
        "TORCH_EXTENSIONS_DIR",
    }
    assert not left, f"not explained: {left}"
