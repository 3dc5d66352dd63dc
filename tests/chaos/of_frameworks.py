"""Faults as frameworks and launchers show them: real torch, TensorFlow, DeepSpeed and MPI."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests import engines
from tests.chaos import injections as do
from tests.chaos import surroundings as within
from tests.chaos.fault import ANY, CGROUP, ONE_EACH, Fault

engine, framework = pytest.mark.engine, pytest.mark.framework
_PAIR = {"type": "pytorch", "processes": 2, "launcher": "direct"}
_TORCH = "import datetime, torch, torch.distributed as dist\n"
_INIT = _TORCH + "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=%d))\n"
_REDUCE = "dist.all_reduce(torch.ones(1))\n"
#: Once all have met: a time that short could be over before the others have imported torch.
_IMPATIENT = "dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1))\n    "
_MPICH = engines.MPICH.parent


def _torch(rank_1: str, rank_0: str = _REDUCE) -> str:
    """Two ranks: one does something else while the other waits for it."""
    return _INIT % 60 + f"go()\nif RANK == 1:\n    {rank_1}\nelse:\n    {rank_0}"


TORCH = [
    Fault("an exception while others wait", "as Failed: rank 1 on node 0 exited with code 1: ValueError: loss is nan$",
          "exception", rank=1, node=0, ranks=[1], nodes=1, distribution=_PAIR,
          script=_torch("raise ValueError('loss is nan')"),
          card=r"others: rank 0 (lost a peer \(exit code 1\)|stopped by jobsdk)"),
    Fault("a rank killed while others wait", "as Failed: rank 1 on node 0 was killed by SIGKILL$", "signal",
          exit_code=137, rank=1, node=0, ranks=[1], nodes=1, distribution=_PAIR,
          script=_torch("time.sleep(600)"), inject=do.to_rank(1, signal.SIGKILL)),
    Fault("a rank that leaves early", "as Failed: rank 0 on node 0 lost its connection to another rank after rank 1 had"
          " ended with code 0: ",
          "peer_lost", rank=0, node=0, ranks=[0], nodes=1, distribution=_PAIR, script=_torch("os._exit(0)"),
          card="others: rank 1 completed"),
    Fault("a collective that times out", "as Failed: rank 0 on node 0 waited too long for other ranks in a collective",
          "collective_timeout", rank=0, node=0, ranks=[0], nodes=1, distribution=_PAIR,
          script=_torch("time.sleep(600)", _IMPATIENT + _REDUCE),
          card="\nadvice: a rank did something else or stood still"),
    Fault("a rank that sleeps while others wait", r"as TimedOut: no rank wrote output .*: rank 0 in all_reduce at"
          r" train.py:\d+; rank 1 at train.py:\d+$", "hang", "TimedOut", 124, nodes=1, distribution=_PAIR,
          script=_torch("time.sleep(600)"), plan={"hang_timeout_s": 6.0}, card=r"rank 0 in all_reduce"),
    Fault("MASTER_PORT taken", "as Completed: all 2 ranks ended with code 0$", None, "Completed", 0, nodes=2,
          distribution=ONE_EACH, script=_TORCH + "go()\ndist.init_process_group('gloo')\n" + _REDUCE
          + "dist.destroy_process_group()\n", inject=do.take_the_master_port, history=["port_in_use"]),
    Fault("an interface that is not there", "as Failed: rank [01] on node [01] could not connect to the other ranks"
          " with Gloo: .*nosuch0", "gloo_error", rank=ANY, node=ANY, nodes=2, distribution=ONE_EACH,
          script=_INIT % 30, environ={"GLOO_SOCKET_IFNAME": "nosuch0"}, waits=False,
          card="\nadvice: GLOO_SOCKET_IFNAME names an interface that this node does not have"),
    Fault("a rank that never initialises", "as Failed: rank 0 on node 0 waited too long for other ranks at the start",
          "rendezvous_timeout", rank=0, node=0, nodes=1, distribution=_PAIR,
          script=_TORCH + "go()\nif RANK == 1:\n    time.sleep(600)\n"
          "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=1))\n"),
    Fault("no process group", "as Failed: rank [01] on node 0 exited with code 1: ValueError: Default process group has"
          " not been initialized", "exception", rank=ANY, node=0, nodes=1, distribution=_PAIR,
          script=_TORCH + "go()\n" + _REDUCE, card="\nadvice: call torch.distributed.init_process_group"),
    Fault("a DataLoader worker out of memory", "as Failed: rank 0 on node 0 ran out of memory and a process of it was"
          r" killed by SIGKILL \(limit of its cgroup: 900 MiB\)$", "out_of_memory", rank=0, node=0, nodes=1,
          distribution=ONE_EACH, around=within.memory(900 << 20), marks=[CGROUP], script=_TORCH + """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.ones(4 << 28)
go()
for _ in torch.utils.data.DataLoader(Data(), num_workers=1):
    pass
"""),
]  # fmt: skip

DEEPSPEED = [
    Fault("no configuration for DeepSpeed", "as Failed: rank 0 on node 0 exited with code 1: Error: Incorrect padding$",
          "exception", rank=0, node=0, nodes=1, waits=False,
          distribution={"type": "deepspeed", "processes": 1, "launcher": "direct"},
          script="from deepspeed.runtime.config import DeepSpeedConfig\nDeepSpeedConfig('no/such.json')\n",
          card="\nadvice: DeepSpeed found no configuration"),
]  # fmt: skip

TENSORFLOW = [
    Fault("a TensorFlow worker killed", r"as Failed: rank 1 \(worker 1\) on node 1 was killed by SIGKILL$", "signal",
          exit_code=137, rank=1, node=1, ranks=[1], script="""
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def step():
    one = lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))
    return strategy.run(one)
step()
up()
while True:
    step()
""", distribution={"type": "tensorflow", "launcher": "direct", "parameter_servers": 0, "chief": False, "workers": 2},
          inject=do.to_rank(1, signal.SIGKILL)),
]  # fmt: skip


def _mpi(launcher: str) -> dict[str, object]:
    return {"type": "mpi", "processes": 1, "launcher": launcher}


_ABORT = "from mpi4py import MPI\ngo()\nif RANK == 1:\n    MPI.COMM_WORLD.Abort(6)\nMPI.COMM_WORLD.Barrier()\n"

MPI = [
    Fault("mpirun missing", "as Failed: node 0 cannot start its processes: no mpirun on PATH: install Open MPI",
          "bootstrap_error", exit_code=126, node=0, distribution=_mpi("mpirun"), around=within.without_programs,
          waits=False),
    Fault("mpirun killed", "as Failed: mpirun on node 0 was killed by SIGKILL$", "signal", exit_code=137, node=0,
          distribution=_mpi("mpirun"), inject=do.kill_mpirun),
    Fault("a rank under mpirun", "as Failed: rank 1 on node 1 exited with code 1: ValueError: of MPI$", "exception",
          rank=1, node=1, distribution=_mpi("mpirun"), script="go()\nif RANK == 1:\n    raise ValueError('of MPI')\n"
          "time.sleep(600)\n"),
    Fault("MPI_Abort in Open MPI", "as Failed: rank 1 on node 1 exited with code 6$", "exit",
          exit_code=6, rank=1, node=1, distribution=_mpi("openmpi"), script=_ABORT),
]  # fmt: skip

#: In an environment of its own, which scripts/install-engines.sh makes.
MPICH = [
    Fault("MPI_Abort in MPICH", "as Failed: rank 1 on node 1 called MPI_Abort", "mpi_abort", exit_code=6, rank=1,
          node=1, distribution=_mpi("hydra"), script=_ABORT, command=f"exec {_MPICH}/python train.py",
          environ={"PATH": f"{_MPICH}:{os.environ['PATH']}"}),
    Fault("an MPI library of another family", r"as Failed: rank [01] on node [01] does not see the other ranks: ",
          "mpi_library", rank=ANY, node=ANY, distribution=_mpi("hydra"), script="from mpi4py import MPI\nhold()\n",
          command=f"exec {sys.executable} train.py", environ={"PATH": f"{_MPICH}:{os.environ['PATH']}"}, waits=False),
]  # fmt: skip


def _marked(faults: list[Fault], *marks: pytest.MarkDecorator) -> list[Fault]:
    return [fault._replace(marks=[*fault.marks, *marks]) for fault in faults]


FRAMEWORKS = [
    *_marked(TORCH, framework("torch")),
    *_marked(DEEPSPEED, framework("deepspeed")),
    *_marked(TENSORFLOW, framework("tensorflow")),
    *_marked(MPI, framework("mpi")),
    *_marked(MPICH, framework("mpi"), engine("mpich")),
]
