"""Running a script that has never heard of jobsdk as a job on this machine, and reading what its ranks wrote."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jobsdk import JobFailed, MLClient, command
from jobsdk.client.run import Run

SCRIPTS = Path(__file__).parent / "scripts"
#: Nothing may be looked up on a network, and two cores are to serve four ranks.
QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}


def start(script: str, arguments: str = "", *, nodes: int = 1, **fields: Any) -> Run:
    """Submit `python SCRIPT ARGUMENTS`, a script of scripts/."""
    variables = {**QUIET, **fields.pop("environment_variables", {})}
    job = command(
        code=SCRIPTS,
        command=f"python {script} {arguments}".rstrip(),
        instance_count=nodes,
        environment_variables=variables,
        **fields,
    )
    return MLClient().jobs.create_or_update(job)


def run(script: str, arguments: str = "", **fields: Any) -> tuple[Run, dict[int, str]]:
    """Run it to its end, which must be a good one; the run, and what each rank wrote."""
    done = start(script, arguments, **fields).wait(timeout=280)
    logs = logs_of(done)
    try:
        done.result()
    except JobFailed as error:
        text = "\n".join(f"rank {rank}:\n{log}" for rank, log in logs.items())
        raise AssertionError(f"{error}\n{text}") from error
    return done, logs


def logs_of(done: Run) -> dict[int, str]:
    """What each rank wrote."""
    files = {int(path.stem.rpartition("-")[2]): path for path in done.folder.logs.glob("node-*/rank-*.log")}
    return {rank: files[rank].read_text() for rank in sorted(files)}


def found(pattern: str, log: str) -> list[str]:
    """What the group of `pattern`, a whole line, stands for in each of its lines."""
    return re.findall(rf"^{pattern}$", log, re.MULTILINE)


def store_of(done: Run) -> Any:
    """MLflow's own client of a run's store."""
    from mlflow import MlflowClient

    return MlflowClient((done.folder.path / "mlruns").as_uri())


def check_training(logs: dict[int, str], size: int) -> None:
    """Every rank says `rank R of SIZE steps N weights W`: each knows its place, and all ended with the same weights."""
    ends = [found(r"rank (\d+ of \d+) (steps \d+ weights \w{64})", log) for log in logs.values()]
    assert [[place for place, _ in end] for end in ends] == [[f"{rank} of {size}"] for rank in range(size)]
    assert len({result for end in ends for _, result in end}) == 1


def check_losses(losses: list[str], epochs: int = 3) -> None:
    """One loss for each epoch, and the last well below the first."""
    values = [float(loss) for loss in losses]
    assert len(values) == epochs
    assert values[-1] < 0.8 * values[0]
