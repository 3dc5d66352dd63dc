"""MPI and DeepSpeed over two hosts that have no sshd: networks, names and run folders of their own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bootstrap.cluster import ClusterRun
from tests.bootstrap.namespaces import Hosts
from tests.bootstrap.runs import plan, processes_of, wait_for
from tests.conftest import Mpi

pytestmark = [pytest.mark.engine("network")]

_ALL_REDUCE = """
import os, socket
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
total = np.empty(100_000)  # more than goes with the first packet
world.Allreduce(np.full(100_000, float(world.rank)), total)
told = world.rank, world.size, int(total[-1]), socket.gethostname(), os.environ["RANK"], os.getcwd()
os.write(1, (" ".join(map(str, told)) + "\\n").encode())  # at one go: a launcher mixes what comes in pieces
"""
_STUCK = """
import time
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 2:
    {ending}
MPI.COMM_WORLD.Barrier()
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts(tmp_path_factory.mktemp("hosts"), 2) as made:
        yield made


@pytest.fixture
def start(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[..., ClusterRun]]:
    runs: list[ClusterRun] = []

    def start(the_plan: dict[str, Any], **env: str) -> ClusterRun:
        runs.append(ClusterRun(hosts, tmp_path, the_plan, **env))
        return runs[-1]

    yield start
    for run in runs:
        run.end()


def mpi_plan(mpi: Mpi, text: str, **more: Any) -> dict[str, Any]:
    distribution = {"type": "mpi", "processes": 2, "launcher": mpi.launcher}
    return plan(text, distribution=distribution, environment=mpi.variables, **more)


def path_of(mpi: Mpi) -> str:
    return os.pathsep.join([mpi.folder, os.environ["PATH"]])


def test_an_all_reduce_with_every_rank_in_its_place(start: Callable[..., ClusterRun], mpi: Mpi, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_ALL_REDUCE)
    # Each daemon starts the next one, as those of thousands of nodes do.
    tree = {"OMPI_MCA_routed_radix": "1", "PRTE_MCA_rml_base_radix": "1"}
    run = start(mpi_plan(mpi, f"exec {mpi.python} {tmp_path}/train.py"), PATH=path_of(mpi), **tree)
    assert run.wait() == [0, 0]
    for rank in range(4):
        node = rank // 2
        assert run.log(node, rank).split() == [str(rank), "4", "6", f"h{node}", str(rank), f"{run.folders[node]}/work"]


def test_a_rank_that_ends_gives_the_job_its_code(start: Callable[..., ClusterRun], mpi: Mpi) -> None:
    run = start(mpi_plan(mpi, "[ $RANK = 3 ] && exit 7; exec sleep 600"), PATH=path_of(mpi))
    assert run.wait() == [7, 7]
    cause = run.report()["cause"]
    assert (cause["rank"], cause["node"], cause["host"], cause["exit_code"]) == (3, 1, "h1", 7)


def test_an_exception_in_a_rank_of_another_host_ends_the_job(
    start: Callable[..., ClusterRun], mpi: Mpi, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(_STUCK.format(ending="raise ValueError('a bad sample')"))
    run = start(mpi_plan(mpi, f"{mpi.python} -m mpi4py {tmp_path}/train.py"), PATH=path_of(mpi))
    assert run.wait() == [1, 1]
    report = run.report()
    assert (report["cause"]["rank"], report["cause"]["node"]) == (2, 1)
    assert report["message"].endswith("ValueError: a bad sample")


def test_a_host_that_is_lost_ends_the_job_whatever_mpirun_says(
    start: Callable[..., ClusterRun], mpi: Mpi, may_leave_files: Callable[[], None]
) -> None:
    may_leave_files()
    run = start(mpi_plan(mpi, "exec sleep 600", grace_s=1.0), PATH=path_of(mpi))
    wait_for(lambda: len(run.events("rank_started")) == 4)
    run.kill_host(1)
    assert run.wait()[0] == 125
    report = run.report()
    assert (report["status"], report["cause"]["node"], report["cause"]["class"]) == ("Lost", 1, "node_lost")


def test_nothing_is_left_when_a_bootstrap_is_killed(
    start: Callable[..., ClusterRun], openmpi: Mpi, may_leave_files: Callable[[], None]
) -> None:
    """Hydra kills the ranks' own bootstraps, and what those have started is for the engine to end then."""
    may_leave_files()
    run = start(mpi_plan(openmpi, "exec sleep 600", grace_s=1.0), PATH=path_of(openmpi))
    wait_for(lambda: len(run.events("rank_started")) == 4)
    run.nodes[1].kill()
    wait_for(lambda: not processes_of(run.folders[1]))
    assert run.wait() == [125, -9]


def test_each_daemon_keeps_its_files_in_its_own_nodes_folder(
    start: Callable[..., ClusterRun], openmpi: Mpi, tmp_path: Path
) -> None:
    job = mpi_plan(openmpi, "exec sleep 600", grace_s=1.0)
    job["environment"]["TMPDIR"] = str(tmp_path / "scratch")
    run = start(job, PATH=path_of(openmpi))
    wait_for(lambda: len(run.events("rank_started")) == 4)
    folders = [sorted(path.name.split(".")[0] for path in node.iterdir()) for node in (tmp_path / "scratch").iterdir()]
    assert sorted(folders) == [["ompi"], ["prted"]]
    for node in run.nodes:
        node.send_signal(signal.SIGINT)
    run.wait()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_nothing_is_left_when_mpirun_is_killed(start: Callable[..., ClusterRun], mpi: Mpi) -> None:
    run = start(mpi_plan(mpi, "exec sleep 600", grace_s=1.0), PATH=path_of(mpi))
    wait_for(lambda: len(run.events("rank_started")) == 4)
    os.kill(run.child_of(0), signal.SIGKILL)
    codes = run.wait()
    assert codes[0] == codes[1] != 0


@pytest.mark.parity
def test_the_autotuner_searches_and_trains_on_both_hosts(
    start: Callable[..., ClusterRun], require_deepspeed: str, tmp_path: Path
) -> None:
    """What Azure's example does by a script that sets up sshd and keys, and sleeps."""
    (tmp_path / "train.py").write_text(_TUNED)
    config = {"train_micro_batch_size_per_gpu": [4], "autotuning": {"fast": False, "tuner_early_stopping": 1}}
    tuned = {"type": "deepspeed", "processes": 1, "launcher": "deepspeed", "autotuning": "run", "config": config}
    text = f"{sys.executable} {tmp_path}/train.py --deepspeed_config $JOBSDK_DEEPSPEED_CONFIG"
    run = start(plan(text, distribution=tuned), DS_ACCELERATOR="cpu")
    assert run.wait() == [0, 0]
    said = run.log(0, 0).splitlines()
    assert sorted(line for line in said if "trained" in line) == [
        "10.77.0.1: trained on h0: 0 of 2, batch 4", "10.77.0.2: trained on h1: 1 of 2, batch 4",
    ]  # fmt: skip
    trial = run.folders[0] / "work/outputs/autotuning_results/z0_gas1_tmbspg4/stdout.log"
    assert "10.77.0.2: trained on h1: 1 of 2, batch 4\n" in trial.read_text()


def test_a_users_own_mpirun_finds_the_hosts(start: Callable[..., ClusterRun], mpi: Mpi, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_ALL_REDUCE.replace('os.environ["RANK"], ', ""))
    own = "mpirun.openmpi" if mpi.folder == "/usr/bin" else "mpirun"
    nodes = "-f $JOBSDK_MACHINEFILE" if mpi.launcher == "hydra" else "--map-by node --hostfile $JOBSDK_HOSTFILE"
    text = f"[ $RANK = 0 ] || exit 0; {own} {nodes} -n 2 {mpi.python} {tmp_path}/train.py"
    direct = {"type": "mpi", "processes": 1, "launcher": "direct"}
    run = start(plan(text, distribution=direct, environment=mpi.variables), PATH=path_of(mpi))
    assert run.wait() == [0, 0]
    # Open MPI 4 warns when its ssh command has begun before mpirun could give it a process group; it goes on.
    lines = [line for line in run.log(0, 0).splitlines() if "plm:rsh: Warning: setpgid(" not in line]
    assert sorted(line.split()[:4] for line in lines) == [["0", "2", "1", "h0"], ["1", "2", "1", "h1"]]


#: Stands in for a training script under the autotuner: it leaves what DeepSpeed's engine would.
_TUNED = """
import base64, json, os, socket, sys
given = sys.argv[sys.argv.index("--deepspeed_config") + 1]
config = json.loads(base64.urlsafe_b64decode(given))
settings = config.get("autotuning", {})
if settings.get("enabled") and os.environ["RANK"] == "0":
    if "model_info" in settings:
        found = {"num_params": 1000, "trainable_num_params": 1000, "activation_mem_per_gpu": 1000}
    else:
        found = {"throughput": 1, "latency": 1, "FLOPS_per_gpu": 1}
    with open(settings["model_info_path" if "model_info" in settings else "metric_path"], "w") as file:
        json.dump(found, file)
place = socket.gethostname(), os.environ["RANK"], os.environ["WORLD_SIZE"], config["train_micro_batch_size_per_gpu"]
print("trained on %s: %s of %s, batch %s" % place, flush=True)
"""


def test_a_users_own_deepspeed_finds_the_hosts(
    start: Callable[..., ClusterRun], require_deepspeed: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, socket, sys\n"
        "print('rank', os.environ['RANK'], 'on', socket.gethostname(), 'of', os.environ['WORLD_SIZE'], flush=True)\n"
        "sys.exit(5 * int(os.environ['RANK']))\n"
    )
    own = f"deepspeed --hostfile $JOBSDK_HOSTFILE --force_multi {tmp_path}/train.py"
    direct = {"type": "deepspeed", "processes": 1, "launcher": "direct"}
    run = start(plan(f"[ $RANK = 0 ] || exit 0; {own}", distribution=direct), DS_ACCELERATOR="cpu")
    assert run.wait() == [5, 5]
    said = run.log(0, 0).splitlines()
    assert "10.77.0.1: rank 0 on h0 of 2" in said
    assert "10.77.0.2: rank 1 on h1 of 2" in said
