"""The CIFAR-10 example: its data, and the training itself on 2 nodes x 2 processes."""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from jobsdk import MLClient, load_job
from jobsdk.client.run import Run
from tests.bootstrap.runs import wait_for

TORCH = pytest.mark.framework("torch")
REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "src_examples" / "cifar10"


def make_data(folder: Path, *options: str) -> Path:
    subprocess.run([sys.executable, EXAMPLE / "make_data.py", folder, *options], check=True)
    return folder


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch):
    """The example's loader: a plain script folder, as the job has it."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import cifar

    return cifar


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "cifar-10-batches-py", "--images-per-batch", "160")


def test_made_data_has_the_published_format(data: Path) -> None:
    assert sorted(os.listdir(data)) == ["batches.meta", *(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    for name in ("data_batch_3", "test_batch"):
        # As the data set's own page says to read it.
        batch = pickle.loads((data / name).read_bytes(), encoding="bytes")
        assert set(batch) == {b"batch_label", b"labels", b"data", b"filenames"}
        assert (batch[b"data"].shape, batch[b"data"].dtype) == ((160, 3072), np.uint8)
        assert sorted(batch[b"labels"]) == sorted(list(range(10)) * 16)
        assert len(set(batch[b"filenames"])) == 160
    meta = pickle.loads((data / "batches.meta").read_bytes(), encoding="bytes")
    assert len(meta[b"label_names"]) == 10
    assert (meta[b"num_vis"], meta[b"num_cases_per_batch"]) == (3072, 160)


def test_made_data_is_the_same_each_time_and_never_overwritten(data: Path, tmp_path: Path) -> None:
    again = make_data(tmp_path / "again", "--images-per-batch", "160")
    assert all((again / name).read_bytes() == (data / name).read_bytes() for name in os.listdir(data))
    other = make_data(tmp_path / "other", "--images-per-batch", "160", "--seed", "1")
    assert (other / "test_batch").read_bytes() != (data / "test_batch").read_bytes()
    refused = subprocess.run([sys.executable, EXAMPLE / "make_data.py", again], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "stays as it is" in refused.stderr


def test_loader_takes_the_folder_or_the_one_that_holds_it(data: Path, cifar) -> None:
    images, labels = cifar.load(data, train=True)
    assert (images.shape, images.dtype, labels.shape) == ((800, 3, 32, 32), np.uint8, (800,))
    above, _ = cifar.load(data.parent, train=True)
    assert np.array_equal(images, above)
    assert len(cifar.load(data, train=False)[0]) == 160


class Python2Pickler(pickle._Pickler):
    """Writes `bytes` as Python 2 wrote `str`, as in the published files."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, content: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(content)

    dispatch[bytes] = save_bytes


def test_loader_reads_files_that_python_2_wrote(tmp_path: Path, cifar) -> None:
    pixels = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump({b"data": pixels, b"labels": [3, 9], b"batch_label": b"testing batch 1 of 1"})
    # The module's name of that time.
    (tmp_path / "test_batch").write_bytes(file.getvalue().replace(b"numpy._core.", b"numpy.core."))
    images, labels = cifar.load(tmp_path, train=False)
    assert np.array_equal(images.reshape(2, 3072), pixels)
    assert labels.tolist() == [3, 9]
    # Three planes, red first, each row by row.
    assert images[0, 1, 0, 0] == pixels[0, 1024]


def test_loader_runs_no_code_from_a_data_set(tmp_path: Path, cifar) -> None:
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(pickle.UnpicklingError, match=r"not a CIFAR-10 batch: it asks for posix\.mkdir"):
        cifar.load(tmp_path, train=False)
    assert not (tmp_path / "made").exists()


def train(data: Path, *trainings: tuple[Path, int]) -> list[str]:
    """What one process alone, which needs the same three variables, says of each training: its folder and epochs."""
    environment = {**os.environ, "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    lines = ["import runpy, sys", "sys.path.insert(0, '')"]
    for folder, epochs in trainings:
        folders = f"--data-dir {data} --model-dir {folder} --checkpoint-dir {folder}"
        argv = f"train.py {folders} --epochs {epochs} --device cpu".split()
        lines += [f"sys.argv = {argv}", "runpy.run_path('train.py', run_name='__main__')", "print('ended')"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=EXAMPLE,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.split("ended\n")[:-1]


@TORCH
def test_training_goes_on_from_its_checkpoint(data: Path, tmp_path: Path) -> None:
    whole, _, resumed = train(data, (tmp_path / "whole", 2), (tmp_path / "parts", 1), (tmp_path / "parts", 2))
    assert "rank 0 goes on from epoch 2" in resumed
    assert "epoch 1/2" not in resumed
    assert re.findall("weights .*", resumed) == re.findall("weights .*", whole)
    assert not list(tmp_path.glob("*/*.part"))


EPOCHS = 4


class Training:
    """What a finished run on 2 nodes x 2 processes has left."""

    def __init__(self, run: Run) -> None:
        self.folder = run.folder.path
        self.status = run.status
        self.report = run.report

    def logs(self, restart: str = "") -> dict[int, str]:
        folder = self.folder / "logs"
        return {rank: (folder / f"node-{rank // 2}" / f"rank-{rank}{restart}.log").read_text() for rank in range(4)}

    def weights(self, restart: str = "") -> set[str]:
        return {re.findall(r"^rank \d weights (\w+)$", log, re.MULTILINE)[0] for log in self.logs(restart).values()}


def losses(log: str) -> dict[int, float]:
    """epoch -> the mean loss of all ranks, as rank 0 says it."""
    return {int(epoch): float(loss) for epoch, loss in re.findall(r"^epoch (\d+)/\d+ loss (\S+)", log, re.MULTILINE)}


def submit(specification: str, data: Path, code: Path | None = None) -> Run:
    changes = [{"inputs.cifar.path": str(data)}, {"inputs.epochs": EPOCHS}]
    job = load_job(REPOSITORY / "job_specs" / specification, params_override=changes)
    if code is not None:
        job.code = str(code)
    return MLClient().jobs.create_or_update(job, compute="local")


@pytest.fixture(scope="module")
def unbroken(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBSDK_HOME", str(tmp_path_factory.mktemp("unbroken")))
        run = submit("cifar10-pytorch.yml", data)
        MLClient().jobs.stream(run.name)
        yield Training(run)


@TORCH
def test_training_on_two_nodes_of_two_processes(unbroken: Training) -> None:
    import torch

    assert unbroken.status == "Completed"
    ranks = unbroken.logs()
    found = list(losses(ranks[0]).values())
    assert len(found) == EPOCHS
    assert found[-1] < 0.8 * found[0]
    assert len(unbroken.weights()) == 1
    assert all(f"rank {rank} of 4 on cpu" in log for rank, log in ranks.items())
    assert float(re.findall(r"^accuracy (\S+) on 160 test images", ranks[0], re.MULTILINE)[0]) > 0.2

    # The saved model is the one that all ranks ended with.
    state = torch.load(unbroken.folder / "outputs" / "model" / "model.pt")
    assert state["0.weight"].shape == (32, 3, 3, 3)
    assert all(torch.isfinite(tensor).all() for tensor in state.values())


#: Whenever the signal comes, there is a rank 3 to be killed.
LINGER = """
while (os.environ["RANK"], os.environ["JOBSDK_RESTART_COUNT"]) == ("3", "0"):
    time.sleep(0.1)
"""


@TORCH
def test_a_job_goes_on_after_a_killed_rank_to_the_weights_of_an_unbroken_one(
    data: Path, unbroken: Training, tmp_path: Path
) -> None:
    code = Path(shutil.copytree(EXAMPLE, tmp_path / "cifar10"))
    with (code / "train.py").open("a") as file:
        file.write(LINGER)
    run = submit("cifar10-resume.yml", data, code)
    checkpoint = run.folder.path / "outputs" / "checkpoints" / "checkpoint.pt"
    wait_for(checkpoint.exists)
    (pid,) = (event["pid"] for event in run.folder.events() if event["event"] == "rank_started" and event["rank"] == 3)
    os.kill(pid, signal.SIGKILL)
    run.wait(200)

    broken = Training(run)
    assert broken.status == "Completed"
    (earlier,) = broken.report["restarts"]
    assert (earlier["rank"], earlier["node"], earlier["exit_code"]) == (3, 1, 128 + signal.SIGKILL)
    assert earlier["decision"] == "restarted after 1 s (1 of 2)"
    again = broken.logs(".restart-1")
    (first,) = {int(re.findall(r"goes on from epoch (\d)", log)[0]) for log in again.values()}
    assert first > 1
    whole, before, after = (losses(text) for text in (unbroken.logs()[0], broken.logs()[0], again[0]))
    assert set(after) == set(range(first, EPOCHS + 1))
    assert {**before, **after} == whole
    assert broken.weights(".restart-1") == unbroken.weights()
