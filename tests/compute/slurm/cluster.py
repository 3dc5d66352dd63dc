"""A real Slurm on this machine: one slurmctld, several slurmd, loopback only or with a network for each node.

It has no systemd, no cgroups and no accounting. GPUs are twins of /dev/null, so that Slurm counts them, hands them out
and sets CUDA_VISIBLE_DEVICES as it does with real ones. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

from jobsdk.bootstrap.system import network, procfs
from tests import engines
from tests.bootstrap.namespaces import Hosts
from tests.bootstrap.runs import carrying, wait_for
from tests.needs import needs

GPUS = 2  # of each node
CPUS = 4  # of each node, whatever the machine has
#: What a submission runs; with a network for each node these must run where the controller is.
_CLIENTS = ("sbatch", "scontrol", "scancel", "squeue", "sacct", "sinfo")

# Times are such that a daemon may stand still for many seconds: what a test waits for is never that one has run out.
_CONFIGURATION = """
ClusterName=test
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=120
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
SlurmdParameters=config_overrides
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=10000,batch_sched_delay=0,bf_interval=1
DefMemPerCPU=100
ReturnToService=2
SlurmdTimeout=120
SlurmctldTimeout=120
InactiveLimit=0
KillWait=30
UnkillableStepTimeout=120
MinJobAge=3600
JobRequeue=1
EnforcePartLimits=NO
BatchStartTimeout=120
OverTimeLimit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu,fpga
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=9 PreemptMode=OFF
PartitionName=short Nodes=ALL MaxTime=1 MaxNodes=1 PreemptMode=OFF
"""


class SlurmCluster:
    """`with SlurmCluster(folder, 4) as cluster:` nodes n1 to n4; with `hosts` the nodes are h1, h2, ... and h0 is the
    controller's machine. `environ` is what its clients need in their environment."""

    def __init__(self, folder: Path, count: int, hosts: Hosts | None = None) -> None:
        self.folder = folder
        self._dead: list[str] = []  # machines
        self.hosts = hosts
        self.nodes = [f"{'h' if hosts else 'n'}{number}" for number in range(1, count + 1)]
        self.environ = {"SLURM_CONF": str(folder / "slurm.conf")}
        if hosts:
            self.environ["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"

    def __enter__(self) -> SlurmCluster:
        needs("slurm")
        for name in ("state", "spool", "log", "run", "bin"):
            (self.folder / name).mkdir()
        self.folder.chmod(0o755)
        self._configure()
        try:
            self._start_munged()
            self._run("slurmctld", host=0)
            for number, node in enumerate(self.nodes, 1):
                self._run("slurmd", *(() if self.hosts else ("-N", node)), host=number)
            wait_for(lambda: self.states() == ["idle"] * len(self.nodes))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with contextlib.suppress(subprocess.CalledProcessError):  # it may not even have come up
                self.end_all_jobs()
            wait_for(lambda: not self._steps())  # without a controller they would try to reach it for ever
        finally:
            self._end_daemons()

    def _steps(self) -> list[int]:
        """The processes in which Slurm looks after a step of a job."""
        ours, everything = carrying(f"SLURM_CONF={self.environ['SLURM_CONF']}"), procfs.table()
        return [pid for pid in ours if pid in everything and everything[pid].name == "slurmstepd"]

    def _end_daemons(self) -> None:
        run = self.folder / "run"
        for pid in [_pid(run / f"slurmd.{node}.pid") for node in self.nodes] + [_pid(run / "slurmctld.pid")]:
            _end(pid)
        _end(_pid(run / "munged.pid"))

    def states(self) -> list[str]:
        """The state of each node, as sinfo has it."""
        return self.client("sinfo", "-N", "-h", "-p", "main", "-o", "%t").split()

    def client(self, *argv: str) -> str:
        """Run one of Slurm's clients as a user does; its stdout."""
        environ = {**os.environ, **self.environ}
        return subprocess.run(argv, env=environ, text=True, capture_output=True, check=True).stdout

    def start_now(self, job: str) -> None:
        """Let a requeued job go at once, which otherwise waits until its old credential is no longer good."""

        def is_told() -> bool:
            try:
                self.client("scontrol", "update", f"JobId={job}", "StartTime=now")
            except subprocess.CalledProcessError:  # its first start is still being cleaned up, or the second has begun
                return "JobState=PENDING" not in self.client("scontrol", "-o", "show", "job", job)
            return True

        wait_for(is_told)

    def end_all_jobs(self) -> None:
        jobs = self.client("squeue", "--noheader", "--format", "%i").split()
        if jobs:
            subprocess.run(["scancel", *jobs], env={**os.environ, **self.environ}, check=False)
            wait_for(lambda: not self.client("squeue", "--noheader"))

    def kill_host(self, node: str) -> None:
        """The machine of a node dies: everything that runs there, in this moment."""
        assert self.hosts is not None
        argv = ["ip", "netns", "pids", self.hosts._namespace(self.nodes.index(node) + 1)]

        def send(pids: set[int], signum: int) -> None:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)

        def there() -> set[int]:
            return set(map(int, subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()))

        stopped: set[int] = set()
        # They stand first, that none sees another one die. Until there is none: one may just have started another.
        while new := there() - stopped:
            send(new, signal.SIGSTOP)
            stopped |= new
        while pids := there():
            send(pids, signal.SIGKILL)
        self._dead.append(node)

    def bring_up(self) -> None:
        """The machines that died come back."""
        while self._dead:
            node = self._dead.pop()
            self._run("slurmd", host=self.nodes.index(node) + 1)
            wait_for(lambda: self._is_back(node))  # noqa: B023

    def _is_back(self, node: str) -> bool:
        if self.client("sinfo", "--noheader", f"--nodes={node}", "--format=%t").split()[:1] == ["idle"]:
            return True
        argv = ["scontrol", "update", f"NodeName={node}", "State=resume"]  # fails until its slurmd has registered
        subprocess.run(argv, env={**os.environ, **self.environ}, check=False, capture_output=True)
        return False

    def _configure(self) -> None:
        folder, here = self.folder, socket.gethostname().split(".")[0]
        lines = [_CONFIGURATION.format(folder=folder)]
        gpus = f"Gres=gpu:fake:{GPUS},fpga:{GPUS} Feature=quick"
        devices = [folder / f"run/gpu{number}" for number in range(GPUS)]
        for device in devices:
            os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))
        if self.hosts:
            lines += ["SlurmctldHost=h0"]
            lines += [f"NodeName={node} CPUs={CPUS} RealMemory=4000 {gpus} State=UNKNOWN" for node in self.nodes]
            self._write_clients()
        else:
            controller, *ports = network.free_ports(1 + len(self.nodes))
            lines += [f"SlurmctldHost={here}(127.0.0.1)", f"SlurmctldPort={controller}"]
            lines += ["CommunicationParameters=NoInAddrAny,NoCtldInAddrAny"]
            lines += [
                f"NodeName={node} NodeHostname={here} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=4000 "
                f"{gpus} State=UNKNOWN"
                for node, port in zip(self.nodes, ports, strict=True)
            ]
        # Partitions name nodes, which must be known before.
        partitions = [line for line in lines[0].splitlines() if line.startswith("Partition")]
        settings = [line for line in lines[0].splitlines() if not line.startswith("Partition")]
        (folder / "slurm.conf").write_text("\n".join([*settings, *lines[1:], *partitions]) + "\n")
        (folder / "gres.conf").write_text(
            "".join(
                f"NodeName={node} Name=gpu Type=fake File={folder}/run/gpu[0-{GPUS - 1}]\n"
                f"NodeName={node} Name=fpga Count={GPUS}\n"
                for node in self.nodes
            )
        )
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")

    def _write_clients(self) -> None:
        """Clients that go to the controller's machine, to be found first on PATH."""
        assert self.hosts is not None
        for name in _CLIENTS:
            real = str(engines.find(name))
            path = self.folder / "bin" / name
            words = " ".join(f"'{word}'" for word in self.hosts.argv(0, [real]))
            path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            path.chmod(0o755)

    def _start_munged(self) -> None:
        run = self.folder / "run"
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        options = {"key-file": key, "socket": run / "munge.sock", "pid-file": run / "munged.pid",
                   "log-file": self.folder / "log/munged.log", "seed-file": run / "munged.seed"}  # fmt: skip
        subprocess.run(
            ["munged", *(f"--{name}={value}" for name, value in options.items()), "--num-threads=2", "--force"],
            env=self._clean(), check=True, capture_output=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def _clean(self) -> dict[str, str]:
        """The environment of daemons, which outlive the test that has them started."""
        return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | self.environ

    def _run(self, *argv: str, host: int) -> None:
        inside = self.hosts.argv(host, argv) if self.hosts else list(argv)
        subprocess.run(
            inside, env=self._clean(), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip


def _pid(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _end(pid: int | None) -> None:
    """End a daemon and wait until it is gone: one that lingers spoils the next one's socket."""
    if pid is None:
        return
    try:
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not _lives(pid), 30.0)
    except ProcessLookupError:
        pass
    except AssertionError:
        os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
