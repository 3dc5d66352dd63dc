"""The MPI examples on 2 nodes x 2 processes: under each MPI of this machine, and as their job files say."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from jobsdk.bootstrap.launchers import mpirun
from tests.bootstrap.runs import LocalRun, plan
from tests.conftest import Mpi

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "src_examples" / "mpi"


def run_under(mpi: Mpi, script: str, folder: Path) -> dict[int, str]:
    """What each rank said, of a run that has succeeded."""
    distribution = {"type": "mpi", "processes": 2, "launcher": mpi.launcher}
    text = f"{mpi.python} -m mpi4py {EXAMPLE}/{script}"
    job = plan(text, distribution=distribution, environment=mpi.variables)
    run = LocalRun(folder / "run", job, PATH=os.pathsep.join([mpi.folder, os.environ["PATH"]]))
    assert run.wait() == 0, run.report()["message"]
    return {rank: run.log(rank) for rank in range(4)}


def losses_of(log: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^epoch \d+/\d+ loss (\S+)$", log, re.MULTILINE)]


def weights_of(logs: dict[int, str]) -> set[str]:
    return {re.findall(rf"^rank {rank} weights (\w+)$", log, re.MULTILINE)[0] for rank, log in logs.items()}


def test_every_rank_sees_the_whole_world_of_its_own_mpi(mpi: Mpi, tmp_path: Path) -> None:
    logs = run_under(mpi, "allreduce.py --length 1000", tmp_path)
    launcher = mpirun.find(mpi.launcher, mpi.folder)
    assert launcher is not None
    number = re.findall(r"\d[\d.]+", launcher.version)[-1]
    for rank, log in logs.items():
        who, result = log.splitlines()
        assert re.fullmatch(rf"rank {rank} of 4 on \S+: (Open MPI v|MPICH Version: ){re.escape(number)}", who)
        assert result == f"rank {rank} sum {10 * sum(range(1000))}"


def test_the_fit_is_one_fit(mpi: Mpi, tmp_path: Path) -> None:
    logs = run_under(mpi, f"fit.py --epochs 5 --samples 500 --model-dir {tmp_path}/model", tmp_path)
    assert all(log.startswith(f"rank {rank} of 4\n") for rank, log in logs.items())
    losses = losses_of(logs[0])
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.7 * losses[0]
    assert len(weights_of(logs)) == 1
    result = json.loads((tmp_path / "model/model.json").read_text())
    assert result["processes"] == 4
    assert result["accuracy"] > 0.9
    assert np.isfinite(result["weights"]).all()


def test_more_processes_fit_the_same_as_one_with_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of the processes' gradients is the gradient of all samples."""
    pytest.importorskip("mpi4py")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import fit

    shares = [fit.samples(50, 4, seed) for seed in range(1, 5)]
    weights = np.linspace(-1.0, 1.0, 4)
    each = [fit.loss_and_gradient(weights, *share) for share in shares]
    loss, gradient = fit.loss_and_gradient(weights, *(np.concatenate(part) for part in zip(*shares, strict=True)))
    assert np.isclose(loss, np.mean([one for one, _ in each]))
    assert np.allclose(gradient, np.mean([one for _, one in each], axis=0))
    # ... and is the loss's slope.
    step = np.array([1e-6, 0.0, 0.0, 0.0])
    points, labels = shares[0]
    slope = (fit.loss_and_gradient(weights + step, points, labels)[0] - each[0][0]) / 1e-6
    assert np.isclose(slope, each[0][1][0], atol=1e-5)


def submitted(spec: str, *changes: dict[str, object]) -> tuple[dict[int, str], Path]:
    """The ranks' logs and the folder of the output `model` of a job file's run."""
    from jobsdk import MLClient, load_job

    client = MLClient()
    job = load_job(REPOSITORY / "job_specs" / spec, params_override=list(changes))
    run = client.jobs.create_or_update(job, compute="local")
    client.jobs.stream(run.name)
    assert client.jobs.get(run.name).status == "Completed"
    logs = {rank: (run.folder.logs / f"node-{rank // 2}" / f"rank-{rank}.log").read_text() for rank in range(4)}
    return logs, run.folder.path / "outputs" / "model"


@pytest.mark.framework("torch")
def test_horovod_style_on_two_nodes_of_two_processes(openmpi: Mpi) -> None:
    import torch

    logs, model = submitted("mpi-horovod-style.yml", {"inputs.epochs": 4})
    assert [log.splitlines()[0] for log in logs.values()] == [
        "rank 0 of 4, local rank 0", "rank 1 of 4, local rank 1",
        "rank 2 of 4, local rank 0", "rank 3 of 4, local rank 1",
    ]  # fmt: skip
    losses = losses_of(logs[0])
    assert len(losses) == 4
    assert losses[-1] < 0.8 * losses[0]
    assert len(weights_of(logs)) == 1
    assert torch.load(model / "model.pt")["0.weight"].shape == (64, 2)


@pytest.mark.parametrize("spec", ["mpi-allreduce.yml", "mpi-fit.yml"])
def test_the_job_file_runs_as_it_is(spec: str, openmpi: Mpi) -> None:
    logs, _ = submitted(spec)
    assert all(f"rank {rank} of 4" in log for rank, log in logs.items())


def test_the_submission_in_python_is_the_job_file(monkeypatch: pytest.MonkeyPatch) -> None:
    from jobsdk import load_job
    from jobsdk.planning.plan import make_plan

    monkeypatch.syspath_prepend(str(REPOSITORY / "src_examples"))
    import submit_mpi

    in_yaml = load_job(REPOSITORY / "job_specs" / "mpi-fit.yml")
    assert make_plan(submit_mpi.job, name="run") == make_plan(in_yaml, name="run")
