"""The MNIST examples for TensorFlow: their data, and each training itself on local nodes."""

from __future__ import annotations

import gzip
import json
import os
import re
import runpy
import signal
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobsdk import CommandJob, MLClient, load_job
from jobsdk.client.run import Run
from jobsdk.errors import JobFailed
from tests.bootstrap.runs import wait_for

TENSORFLOW = pytest.mark.framework("tensorflow")
REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "src_examples" / "mnist_tensorflow"
FILES = ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", "train-images-idx3-ubyte", "train-labels-idx1-ubyte"]


def make_data(folder: Path, *options: str) -> Path:
    subprocess.run([sys.executable, EXAMPLE / "make_data.py", folder, *options], check=True)
    return folder


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch):
    """The example's loader: a plain script folder, as the job has it."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import mnist

    return mnist


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "mnist"
    return make_data(folder, "--training-images", "960", "--test-images", "170")


# -- data --------------------------------------------------------------------------------------------------------------


def test_made_data_has_the_published_format(data: Path) -> None:
    assert sorted(os.listdir(data)) == FILES
    images, labels = ((data / name).read_bytes() for name in FILES[:2])
    assert struct.unpack(">4I", images[:16]) == (2051, 170, 28, 28)
    assert struct.unpack(">2I", labels[:8]) == (2049, 170)
    assert len(images) == 16 + 170 * 28 * 28
    assert sorted(labels[8:]) == sorted(list(range(10)) * 17)


def test_made_data_is_the_same_each_time_and_never_overwritten(data: Path, tmp_path: Path) -> None:
    again = make_data(tmp_path / "again", "--training-images", "960", "--test-images", "170")
    assert all((again / name).read_bytes() == (data / name).read_bytes() for name in FILES)
    other = make_data(tmp_path / "other", "--training-images", "10", "--test-images", "170", "--seed", "1")
    assert (other / FILES[0]).read_bytes() != (data / FILES[0]).read_bytes()
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras/mnist.npz").touch()
    for folder in (again, tmp_path / "keras"):
        refused = subprocess.run([sys.executable, EXAMPLE / "make_data.py", folder], capture_output=True, text=True)
        assert refused.returncode == 1
        assert "stays as it is" in refused.stderr
    assert os.listdir(tmp_path / "keras") == ["mnist.npz"]


def as_npz(data: Path, folder: Path, mnist) -> Path:
    """The same data set as Keras ships it."""
    arrays = {}
    for part, train in (("train", True), ("test", False)):
        images, labels = mnist.load(data, train)
        arrays |= {f"x_{part}": images, f"y_{part}": labels.astype(np.uint8)}
    folder.mkdir()
    np.savez_compressed(folder / "mnist.npz", **arrays)
    return folder


def test_loader_reads_all_published_forms(data: Path, tmp_path: Path, mnist) -> None:
    images, labels = mnist.load(data, train=True)
    assert (images.shape, images.dtype, labels.shape, labels.dtype) == ((960, 28, 28), np.uint8, (960,), np.int64)
    assert images[1, 2, 3] == (data / "train-images-idx3-ubyte").read_bytes()[16 + 784 + 2 * 28 + 3]
    for name in FILES:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((data / name).read_bytes()))
    dotted = tmp_path / "dotted"
    dotted.mkdir()
    for name in FILES:
        (dotted / name.replace("-idx", ".idx")).write_bytes((data / name).read_bytes())
    npz = as_npz(data, tmp_path / "npz", mnist)
    for place in (tmp_path, dotted, npz, npz / "mnist.npz"):
        again, again_labels = mnist.load(place, train=True)
        assert np.array_equal(again, images)
        assert np.array_equal(again_labels, labels)
        assert len(mnist.load(place, train=False)[0]) == 170


def cut(content: bytes) -> bytes:
    return content[:-1]


def only_header_begun(content: bytes) -> bytes:
    return content[:7]


def of_other_type(content: bytes) -> bytes:
    return b"\0\0\x0d" + content[3:]


def of_other_size(content: bytes) -> bytes:
    return content[:8] + struct.pack(">2I", 14, 56) + content[16:]


def with_a_label_of_ten(content: bytes) -> bytes:
    return content[:-1] + b"\x0a"


def with_fewer(content: bytes) -> bytes:
    return content[:4] + struct.pack(">I", 169) + content[8:-1]


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        (FILES[0], cut, "has 133279 bytes of data, not the 133280 that it names"),
        (FILES[0], only_header_begun, "less than the header"),
        (FILES[0], of_other_type, "magic number 0x00000d03, not 0x00000803"),
        (FILES[0], of_other_size, "images of 14 x 56 pixels, not 28 x 28"),
        (FILES[1], with_a_label_of_ten, "the label 10 is no digit"),
        (FILES[1], with_fewer, "170 images and 169 labels do not belong together"),
    ],
)
def test_damaged_idx_files_are_refused(data: Path, tmp_path: Path, mnist, name: str, change: Any, says: str) -> None:
    for each in FILES[:2]:
        content = (data / each).read_bytes()
        (tmp_path / each).write_bytes(change(content) if each == name else content)
    with pytest.raises(ValueError, match=says):
        mnist.load(tmp_path, train=False)


def test_other_damage_is_refused_in_words(data: Path, tmp_path: Path, mnist) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds neither t10k-images-idx3-ubyte .* nor mnist\.npz"):
        mnist.load(tmp_path, train=False)
    (tmp_path / f"{FILES[0]}.gz").write_bytes(gzip.compress((data / FILES[0]).read_bytes())[:-100])
    with pytest.raises(ValueError, match=r"is no whole gzip file"):
        mnist.load(tmp_path, train=False)

    archive = tmp_path / "mnist.npz"
    archive.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"mnist\.npz is not MNIST as Keras ships it"):
        mnist.load(tmp_path, train=True)
    np.savez(archive, x_train=np.zeros((2, 28, 28), np.uint8))
    with pytest.raises(ValueError, match="y_train"):
        mnist.load(tmp_path, train=True)
    np.savez(archive, x_train=np.zeros((2, 32, 32), np.uint8), y_train=np.zeros(2, np.uint8))
    with pytest.raises(ValueError, match=r"x_train is uint8 of shape \(2, 32, 32\)"):
        mnist.load(tmp_path, train=True)


def test_loader_runs_no_code_from_a_data_set(tmp_path: Path, mnist) -> None:
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    evil = np.array([Evil()], dtype=object)
    np.savez(tmp_path / "mnist.npz", x_train=evil, y_train=evil)
    with pytest.raises(ValueError, match="not MNIST as Keras ships it"):
        mnist.load(tmp_path, train=True)
    assert not (tmp_path / "made").exists()


# -- training ----------------------------------------------------------------------------------------------------------


def spec(name: str, data: Path, **fields: Any) -> CommandJob:
    """A job file of the repository with the small data set and few epochs."""
    settings = {"inputs.mnist.path": str(data), "inputs.epochs": 3, **fields}
    return load_job(REPOSITORY / "job_specs" / f"{name}.yml", params_override=[settings])


@pytest.mark.parametrize(
    ("script", "name"),
    [("submit_mnist", "mnist-tensorflow"), ("submit_mnist_parameter_server", "mnist-parameter-server")],
)
def test_the_submissions_in_python_are_the_jobs_of_the_files(script: str, name: str) -> None:
    written = runpy.run_path(str(REPOSITORY / "src_examples" / f"{script}.py"))["job"]
    loaded = load_job(REPOSITORY / "job_specs" / f"{name}.yml")
    assert written.command.split() == loaded.command.split()
    for field in ("display_name", "experiment_name", "environment_variables", "distribution", "resources", "outputs"):
        assert getattr(written, field) == getattr(loaded, field), field
    assert [written.inputs[key] for key in ("epochs", "learning_rate")] == [
        loaded.inputs[key] for key in ("epochs", "learning_rate")
    ]
    assert written.resolve(written.code) == loaded.resolve(loaded.code).resolve()


def completed(job: CommandJob) -> Run:
    """Run the job to its good end."""
    run = MLClient().jobs.create_or_update(job, compute="local").result()
    assert (run.status, run.exit_code) == ("Completed", 0)
    return run


def log(run: Run, rank: int) -> str:
    (path,) = run.folder.path.glob(f"logs/node-*/rank-{rank}.log")
    return path.read_text()


def check_training(run: Run, epochs: int = 3) -> None:
    """Rank 0 told of a falling loss and an accuracy better than chance, and left a whole model."""
    losses = re.findall(rf"^epoch (\d+)/{epochs} loss (\S+)", log(run, 0), re.MULTILINE)
    assert [int(epoch) for epoch, _ in losses] == list(range(1, epochs + 1))
    assert float(losses[-1][1]) < 0.85 * float(losses[0][1])
    (accuracy,) = re.findall(r"^accuracy (\S+) on 170 test images$", log(run, 0), re.MULTILINE)
    assert float(accuracy) > 0.3
    folder = Path(run.outputs.model.path)
    assert os.listdir(folder) == ["model.keras"]
    with zipfile.ZipFile(folder / "model.keras") as model:
        assert model.testzip() is None
        assert json.loads(model.read("config.json"))["class_name"] == "Sequential"
        assert "model.weights.h5" in model.namelist()


def weights(run: Run, workers: int) -> set[str]:
    """The digests of all workers' weights."""
    digests = [re.findall(rf"^worker {k} weights (\w{{16}})$", log(run, k), re.MULTILINE) for k in range(workers)]
    assert all(len(digest) == 1 for digest in digests)
    return {digest[0] for digest in digests}


@TENSORFLOW
def test_two_workers_with_a_loop_of_their_own(data: Path) -> None:
    run = completed(spec("mnist-tensorflow", data))
    check_training(run)
    assert len(weights(run, 2)) == 1
    for worker in (0, 1):
        assert f"worker {worker} trains on 1 of 2 devices" in log(run, worker)
    assert "epoch" not in log(run, 1)


@TENSORFLOW
def test_one_worker_alone_reading_the_data_of_keras(data: Path, tmp_path: Path, mnist) -> None:
    npz = as_npz(data, tmp_path / "npz", mnist)
    run = completed(spec("mnist-tensorflow", npz, **{"resources.instance_count": 1}))
    check_training(run)
    assert "worker 0 trains on 1 of 1 devices" in log(run, 0)


@TENSORFLOW
def test_two_workers_with_fit_of_keras_2(data: Path) -> None:
    run = completed(spec("mnist-keras", data))
    check_training(run)
    assert len(weights(run, 2)) == 1


#: How fit of Keras 3 ends on each worker, shortened.
_OF_KERAS_3 = """
class model:
    def fit(training):
        raise ValueError("Attempt to convert a value (PerReplica:{\\n  0: <tf.Tensor: shape=()>\\n}) with "
                         "an unsupported type (<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor.")
model.fit("training")
"""


@pytest.mark.parametrize("script", ["as recorded", pytest.param("for real", marks=[TENSORFLOW, pytest.mark.parity])])
def test_fit_of_keras_3_fails_and_jobsdk_says_what_to_do(data: Path, tmp_path: Path, script: str) -> None:
    job = spec("mnist-keras", data, environment_variables={"TF_CPP_MIN_LOG_LEVEL": "2"})
    (warning,) = job.findings()
    assert not warning.is_error
    assert "TF_USE_LEGACY_KERAS" in str(warning)

    if script == "as recorded":
        code = tmp_path / "code"
        code.mkdir()
        (code / "train_keras.py").write_text(_OF_KERAS_3)
        job.code = str(code)
    run = MLClient().jobs.create_or_update(job, compute="local")
    with pytest.raises(JobFailed) as failure:
        run.result()
    assert "PerReplica" in run.report["message"]
    assert "TF_USE_LEGACY_KERAS=1" in run.report["cause"]["advice"]
    assert str(failure.value).splitlines()[-1] == f"advice: {run.report['cause']['advice']}"


@TENSORFLOW
def test_a_chief_two_workers_and_a_parameter_server(data: Path) -> None:
    run = completed(spec("mnist-parameter-server", data, **{"inputs.epochs": 6}))
    check_training(run, epochs=6)
    assert "the weights are on /job:ps/replica:0/task:0/device:CPU:0\n" in log(run, 0)
    ranks = run.report["ranks"]
    assert [(rank["node"], rank["role"]) for rank in ranks] == [(0, "chief"), (0, "worker"), (0, "ps"), (1, "worker")]
    # The chief came to its end; the others serve without end, and jobsdk ended them.
    assert (ranks[0]["exit_code"], ranks[0]["stopped"]) == (0, False)
    assert all(rank["stopped"] and rank["signal"] for rank in ranks[1:])
    for rank, role in ((1, "worker 0"), (2, "ps 0"), (3, "worker 1")):
        assert f"{role} serves" in log(run, rank)
        assert "epoch" not in log(run, rank)


def test_the_exit_code_of_the_chief_is_that_of_the_job(data: Path) -> None:
    fields = {"inputs.epochs": 1, "distribution.worker_count": 1, "resources.instance_count": 1}
    job = spec("mnist-parameter-server", data, **fields)
    # TensorFlow's servers serve without end, too.
    job.command = "case $AZUREML_PROCESS_NAME in chief_0) echo accuracy; exit 3;; *) exec sleep 600;; esac"
    run = MLClient().jobs.create_or_update(job, compute="local").wait()
    assert (run.status, run.exit_code) == ("Failed", 3)
    assert "accuracy" in log(run, 0)
    assert run.report["cause"]["rank"] == 0
    assert [(rank["role"], rank["stopped"]) for rank in run.report["ranks"]] == [
        ("chief", False), ("worker", True), ("ps", True),
    ]  # fmt: skip


def test_a_worker_that_fails_is_named(data: Path) -> None:
    job = spec("mnist-tensorflow", data)
    job.command = "exec sleep 600"  # a worker of TensorFlow waits for one that is gone
    run = MLClient().jobs.create_or_update(job, compute="local")

    def pids() -> list[int]:
        events = run.folder.events()
        return [event["pid"] for event in events if event["event"] == "rank_started" and event["rank"] == 1]

    (pid,) = wait_for(pids)
    os.kill(pid, signal.SIGKILL)
    run.wait()
    assert (run.status, run.exit_code) == ("Failed", 128 + signal.SIGKILL)
    assert (run.report["cause"]["rank"], run.report["cause"]["node"]) == (1, 1)
    assert "rank 1 (worker 1) on node 1 was killed by SIGKILL" in run.report["message"]
