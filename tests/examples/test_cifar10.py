"""The CIFAR-10 example: its data, and the training itself on 2 nodes x 2 processes."""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

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


def train(data: Path, folder: Path, epochs: int) -> str:
    """One process alone, which needs the same three variables."""
    environment = {**os.environ, "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    options = ["--data-dir", data, "--epochs", str(epochs), "--model-dir", folder, "--checkpoint-dir", folder]
    done = subprocess.run(
        [sys.executable, "train.py", *options, "--device", "cpu"],
        cwd=EXAMPLE,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def test_training_goes_on_from_its_checkpoint(data: Path, tmp_path: Path) -> None:
    whole = train(data, tmp_path / "whole", epochs=2)
    train(data, tmp_path / "parts", epochs=1)
    resumed = train(data, tmp_path / "parts", epochs=2)
    assert "rank 0 goes on from epoch 2" in resumed
    assert "epoch 1/2" not in resumed
    assert re.findall("weights .*", resumed) == re.findall("weights .*", whole)
    assert not list(tmp_path.glob("*/*.part"))


def test_training_on_two_nodes_of_two_processes(data: Path) -> None:
    import torch

    from jobsdk import MLClient, load_job

    job = load_job(
        REPOSITORY / "job_specs" / "cifar10-pytorch.yml",
        params_override=[{"inputs.cifar.path": str(data)}, {"inputs.epochs": 4}],
    )
    client = MLClient()
    run = client.jobs.create_or_update(job, compute="local")
    client.jobs.stream(run.name)
    assert client.jobs.get(run.name).status == "Completed"

    model = Path(run.outputs.model.path)
    logs = model.parent.parent / "logs"
    ranks = {rank: (logs / f"node-{rank // 2}" / f"rank-{rank}.log").read_text() for rank in range(4)}
    losses = [float(loss) for loss in re.findall(r"^epoch \d+/4 loss (\S+)", ranks[0], re.MULTILINE)]
    assert len(losses) == 4
    assert losses[-1] < 0.8 * losses[0]
    weights = {re.findall(r"^rank \d weights (\w+)$", log, re.MULTILINE)[0] for log in ranks.values()}
    assert len(weights) == 1
    assert all(f"rank {rank} of 4 on cpu" in log for rank, log in ranks.items())
    assert float(re.findall(r"^accuracy (\S+) on 160 test images", ranks[0], re.MULTILINE)[0]) > 0.2

    # The saved model is the one that all ranks ended with.
    state = torch.load(model / "model.pt")
    assert state["0.weight"].shape == (32, 3, 3, 3)
    assert all(torch.isfinite(tensor).all() for tensor in state.values())
