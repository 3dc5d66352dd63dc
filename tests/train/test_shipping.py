"""jobsdk.train where jobsdk is not installed: jobs bring it along, and what it reports comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsdk import CommandJob, MLClient, PyTorchDistribution, command
from jobsdk.bootstrap import archive
from jobsdk.bootstrap.hangs import arming
from jobsdk.bootstrap.spec import paths as layout
from jobsdk.client.run import Run
from jobsdk.runs.metrics import Point, last, read
from tests.azureml.played import Played
from tests.bootstrap.test_archive import interpreters
from tests.compute.slurm.cluster import SlurmCluster
from tests.compute.ssh.sshd import Sshd

SCRIPT = Path(__file__).parent / "scripts/progress.py"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of an environment in which nothing is installed."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    return str(folder / "bin/python")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in this repository, where Python would find jobsdk by itself."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("PYTHONPATH", raising=False)


def job(python: str, **fields: object) -> CommandJob:
    """Two nodes with a rank each."""
    code = Path("code")
    code.mkdir()
    (code / SCRIPT.name).write_text(SCRIPT.read_text())
    return command(
        code="code", command=f"{python} {SCRIPT.name}", instance_count=2,
        distribution=PyTorchDistribution(process_count_per_instance=1), **fields,
    )  # type: ignore[arg-type]  # fmt: skip


def check(run: Run) -> None:
    """What two ranks have reported is here, and none of it among the logs."""
    assert [point[:2] for point in run.metrics["loss"] if point.rank == 1] == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert set(run.metrics) == {"loss", "eval/rank"}
    assert last(run.metrics["eval/rank"])[:2] == (2, 0.0)
    assert {point.rank for point in run.metrics["loss"]} == {0, 1}
    for rank in range(2):
        said = (run.folder.logs / f"node-{rank}/rank-{rank}.log").read_text()
        assert said.startswith("begins at 0 with jobsdk of ")
        assert "python-helpers" in said
    shown = b"".join(shown_by(run)).decode()
    assert shown.count("begins at") == 2
    assert '"metrics"' not in shown


def shown_by(run: Run) -> list[bytes]:
    class Sink:
        def __init__(self) -> None:
            self.written: list[bytes] = []

        def write(self, data: bytes, /) -> None:
            self.written.append(data)

        def flush(self) -> None:
            pass

    sink = Sink()
    run.logs(out=sink)
    return sink.written


def submitted(one: CommandJob) -> Run:
    return MLClient().jobs.create_or_update(one).result(timeout=200)


def test_on_this_machine_with_a_restart(bare: str, tmp_path: Path) -> None:
    run = submitted(job(bare, max_restarts=1, restart_delay=0, environment_variables={"FAIL": "1"}))
    losses = [point[:2] for point in run.metrics["loss"] if point.rank == 1]
    assert losses == [(0, 3.0), (1, 2.0), (2, 1.0)]  # the second start went on after the checkpoint
    outputs = tmp_path / "results/artifacts/outputs/checkpoints/checkpoint_000000"
    MLClient().jobs.download(run, download_path=tmp_path / "results")
    assert {path.name for path in outputs.iterdir()} == {"state-0", "state-1"}
    logs = tmp_path / "results/artifacts/logs/node-0"
    assert {name for name in os.listdir(logs) if name.startswith("rank-")} == {"rank-0.log", "rank-0.restart-1.log"}


@pytest.mark.engine("ssh")
def test_by_ssh(bare: str, home: Path, tmp_path: Path) -> None:
    sshd = Sshd(tmp_path)
    content = {"type": "ssh", "hosts": [sshd.add("h0")], "python": sys.executable, "ssh_options": list(sshd.options)}
    (home / "config/jobsdk").mkdir(parents=True)
    (home / "config/jobsdk/computes.yml").write_text(json.dumps({"computes": {"lab": content}}))
    one = job(bare, compute="lab")
    one.resources.instance_count = 1
    one.distribution = PyTorchDistribution(process_count_per_instance=2)
    run = submitted(one)
    assert {point.rank for point in run.metrics["loss"]} == {0, 1}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "slurm"
    folder.mkdir()
    with SlurmCluster(folder, 2) as cluster:
        for name, value in cluster.environ.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.engine("slurm")
@pytest.mark.usefixtures("slurm")
def test_on_slurm(bare: str) -> None:
    Path("computes.yml").write_text("computes: {cluster: {type: slurm}}")
    check(submitted(job(bare, compute="cluster")))


def test_through_the_output_of_a_node_as_on_azure_ml(bare: str, tmp_path: Path) -> None:
    played = Played(job(bare), tmp_path / "played")
    try:
        assert played.wait() == [0, 0]
    finally:
        played.end()
    played.mirror()
    check(Run(played.run))
    for node in range(2):  # ./outputs is what Azure ML keeps
        kept = played.code(node) / "outputs/checkpoints/checkpoint_000000"
        assert [path.name for path in kept.iterdir()] == [f"state-{node}"]


# -- how it gets there ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["archive", "folder"])
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder as the bootstrap makes it, of each of its two forms."""
    folder = tmp_path_factory.mktemp("run")
    if request.param == "folder":
        arming.prepare(str(folder))
        return folder
    packed = folder / "job.pyz"
    packed.write_bytes(archive.build())
    code = (
        "import sys; sys.path[0] = sys.argv[1]; from jobsdk_bootstrap.hangs.arming import prepare; prepare(sys.argv[2])"
    )
    for _ in range(2):  # as two nodes that share it do
        subprocess.run([sys.executable, "-S", "-E", "-c", code, packed, folder], check=True)
    return folder


def run_python(python: str, folder: Path, code: str, *before: str) -> str:
    paths = ":".join([layout.armed(str(folder)), *before])
    environment = {**os.environ, "PYTHONPATH": paths, "JOBSDK_REPORTS": str(folder / "reports-0.log")}
    done = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: Path(path).name)
def test_every_python_can_import_it(python: str, prepared: Path, tmp_path: Path) -> None:
    code = (
        "import jobsdk, sys\n"
        "from jobsdk import train\n"
        "from jobsdk.train import *\n"
        "for name in train.__all__: getattr(train, name)\n"
        "report({'loss': 1.0}, Checkpoint.from_directory(sys.path[-1]))\n"
        "print(get_context().rank, get_checkpoint() is not None, sys.path[-1], jobsdk.__file__)"
    )
    rank, found, entry, source = run_python(python, prepared, code).split()
    assert (rank, found, entry) == ("0", "True", layout.helpers(str(prepared)))
    assert source.startswith(entry) == (python != sys.executable)  # where it is installed


def test_one_that_is_installed_comes_first(prepared: Path) -> None:
    root = Path(archive.__file__).parents[2]
    assert run_python(sys.executable, prepared, "import jobsdk; print(jobsdk.__file__)", str(root)).strip() == str(
        root / "jobsdk/__init__.py"
    )


def test_what_is_not_brought_is_named(bare: str, prepared: Path) -> None:
    code = "import jobsdk\ntry: jobsdk.MLClient\nexcept AttributeError as error: print(error)"
    assert run_python(bare, prepared, code).startswith("jobsdk is not installed here: a job brings jobsdk.train alone.")


def test_all_of_it_is_in_the_archive(prepared: Path) -> None:
    brought = Path(layout.helpers(str(prepared)), "jobsdk/train")
    ours = Path(archive.__file__).parents[1] / "train"
    assert {path.name: path.read_bytes() for path in brought.glob("*.py")} == {
        path.name: path.read_bytes() for path in ours.glob("*.py")
    }


def test_read_what_a_crash_has_cut_short(tmp_path: Path) -> None:
    path = Path(layout.reports(str(tmp_path), 0, 0))
    path.parent.mkdir(parents=True)
    line = '{"t":1.5,"rank":0,"step":2,"metrics":{"a":"inf","b":"text","c":true},"checkpoint":null}\n'
    path.write_text(line + '[]\n{"t":1}\n' + line[:30])
    assert read("r", str(tmp_path)) == {"a": [Point(2, float("inf"), 1.5, 0)], "c": [Point(2, 1.0, 1.5, 0)]}
