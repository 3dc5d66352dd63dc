"""Plain machines: each node of a job is a machine that ssh reaches, without anything installed there but Python.

computes:
  lab:
    type: ssh
    hosts: [gpu-a, {host: user@gpu-b:2222, gpus: 4, address: 10.0.0.2}]
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.spec import paths as layout
from jobsdk.bootstrap.spec import plan_file, ranks
from jobsdk.compute import job_rules
from jobsdk.compute.base import Check, Compute, Spec, Warn
from jobsdk.compute.ends import EngineEnd, finish
from jobsdk.compute.hosts.remote import RemoteHost, each, errors_of
from jobsdk.compute.settings import meanings, mistakes_in
from jobsdk.compute.ssh.hosts import Entry, ask, entries
from jobsdk.compute.ssh.settings import FOLDER, PYTHON, SETTINGS, lines
from jobsdk.compute.ssh.start import MEMBERS, Member, Start, clock_difference
from jobsdk.errors import ComputeError, JobsdkError
from jobsdk.findings import Finding
from jobsdk.home import locked

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.compute.hosts.receiving import Received
    from jobsdk.job.command import CommandJob
    from jobsdk.job.machines import Machine
    from jobsdk.job.workers import NodeCapacity
    from jobsdk.planning.placement import Placement
    from jobsdk.runs.folder import RunFolder

#: Below those that kernels give to outgoing connections; each run has a few of them for its control port.
_FIRST_PORT, _LAST_PORT, _PORTS = 20000, 29000, 4
_MOST_CLOCK_DIFFERENCE_S = 5.0  # seconds


class SshCompute(Compute):
    """The first hosts are the nodes of a job, host 0 its node 0."""

    type: ClassVar[str] = "ssh"
    settings_known: ClassVar[Mapping[str, str]] = meanings(SETTINGS)

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        super().__init__(name, settings)
        try:
            self._hosts = entries(settings.get("hosts"), settings.get("gpus_per_node"))
        except ComputeError as error:
            raise ComputeError(f"compute {name}: {error}") from None
        self._folder = str(settings.get("folder") or FOLDER).rstrip("/")
        self._python = str(settings.get("python") or PYTHON)
        self._setup = "".join(f"{line}\n" for line in lines(settings.get("setup", [])))
        self._options = lines(settings.get("ssh_options", []))
        self._ports: list[int] = settings.get("ports", [])

    def mistakes(self, own: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        return mistakes_in(SETTINGS, own, of_job=False)

    # -- what it can do ------------------------------------------------------------------------------------------

    def findings(self, job: CommandJob, plan: Plan, at: Placement, *, build_env: bool = False) -> list[Finding]:
        return [
            *self._judge_nodes(plan),
            *job_rules.what_none_can(self.name, job, plan, "give a path of the hosts, or an https URL"),
            *job_rules.inputs_not_sent(plan, f"the hosts of {self.name}"),
            *self._judge_unused(job, plan, at.machine, build_env),
        ]

    def room(self, job: CommandJob, machine: Machine | None) -> NodeCapacity | None:
        from jobsdk.job.workers import NodeCapacity

        known = [len(entry.gpus) for entry in self._hosts if entry.gpus is not None]
        of_machine = super().room(job, machine) or NodeCapacity("")
        gpus = min(known) if len(known) == len(self._hosts) else of_machine.gpus
        return of_machine._replace(name=f"a host of {self.name}", gpus=gpus, nodes=len(self._hosts))

    def _judge_nodes(self, plan: Plan) -> list[Finding]:
        where, there = ("resources", "instance_count"), len(self._hosts)
        if plan["nodes"] > there:
            message = f"the job has {plan['nodes']} nodes, and the compute {self.name} {there} hosts"
            return [Finding("error", where, message, f"set it to {there} or less, or add hosts to the compute")]
        needed = _gpus_needed(plan)
        found = []
        for entry in self._hosts[: plan["nodes"]] if needed is not None else ():
            if entry.gpus is None:
                message = f"how many GPUs {entry.host} has is not said, so that they cannot be shared out"
                fix = f"set gpus for {entry.host}, or gpus_per_node, in the compute {self.name}"
                found.append(Finding("error", ("resources", "gpus_per_process"), message, fix))
            elif needed is not None and len(entry.gpus) < needed:
                message = f"each node needs {needed} GPUs, and {entry.host} has {len(entry.gpus)}"
                found.append(Finding("error", ("resources", "gpus_per_process"), message, "start fewer processes"))
        return found

    def _judge_unused(self, job: CommandJob, plan: Plan, machine: Machine | None, build_env: bool) -> list[Finding]:
        if build_env:
            message = f"cannot be built on the hosts of {self.name}"
            return [Finding("error", ("environment",), message, "set `python`, or `setup`, in the compute")]
        supported = () if machine is None else ("CPU", "memory", "accelerator_type")
        found = [
            *job_rules.ignored_fields(self.name, job),
            *job_rules.ignored_outputs(self.name, job, plan),
            *job_rules.ignored_scaling(self.name, job, supported),
        ]
        if job.environment is not None:
            found.insert(0, Finding("warning", ("environment",), f"has no effect on the compute {self.name}"))
        return found

    # -- submitting ----------------------------------------------------------------------------------------------

    def compile(
        self, job: CommandJob, plan: Plan, at: Placement, *, in_place: bool = False, build_env: bool = False
    ) -> Spec:
        code = job_rules.code_here(job)
        hosts = self._hosts[: plan["nodes"]]
        return {
            "compute": self.name,
            "type": self.type,
            "run": plan["run"],
            "hosts": [entry.to_dict() for entry in hosts],
            "gpus": _gpus_needed(plan),
            "folder": self._folder,
            "working_dir": f"{self._folder}/runs/{plan['run']}/code",
            "python": self._python,
            "setup": self._setup,
            "ports": self._ports or _ports_of(plan["run"]),
            "code": code,
        }

    def prepare(self, spec: Spec, warn: Warn) -> None:
        pass  # the hosts are asked only once there is a run's folder

    def submit(self, spec: Spec, run: RunFolder, warn: Warn) -> None:
        hosts = [(Entry(**one), self._host(one["host"])) for one in spec["hosts"]]
        Start(spec, run, hosts).all()
        plan_file.forget_secrets(str(run.path))  # the hosts have them as long as the run goes on

    def _host(self, address: str) -> RemoteHost:
        return RemoteHost(address, self._options, self._python, self.folder_mode)

    def _members(self, run: RunFolder) -> list[Member]:
        known = {entry.host: entry for entry in self._hosts}
        return [
            Member(rank, known[one["host"]], self._host(one["host"]), one["run_dir"], one["leader"])
            for rank, one in enumerate(run.read_json(MEMBERS).get("nodes", ()))
        ]

    # -- the run -------------------------------------------------------------------------------------------------

    def refresh(self, run: RunFolder) -> None:
        with locked(run.path / "pull.lock"):
            if run.recorded_state().is_terminal:
                return
            members = self._members(run)
            if members:
                self._refresh(run, members)

    def _refresh(self, run: RunFolder, members: Sequence[Member]) -> None:
        leaders = [one for one in members if one.leader == one.rank]

        def pull(one: Member) -> Received:
            return one.host.receive(run, one.run_dir)

        first, *others = each(leaders, pull)
        if isinstance(first, ComputeError):
            self._note(others)
            raise ComputeError(f"run {run.name}: {first}; what is known of it here stays as it is")
        is_over = first.has_ended or 0 not in first.living
        if is_over:  # what was written last is there by now
            others = each(leaders[1:], pull)
        self._note(others)
        failed = errors_of(others)
        if is_over:
            for error in failed:
                run.append_event("warning", message=f"logs may be missing: {error}")
            each(members, lambda one: ask(one.host, "sweep", one.run_dir))
        first.note()
        if is_over:
            self._end_without_report(run, members[0])
        elif failed:
            raise ComputeError(f"run {run.name}: " + "; ".join(map(str, failed)))

    def _note(self, received: Sequence[Received | ComputeError]) -> None:
        for one in received:
            if not isinstance(one, ComputeError):
                one.note()

    def _end_without_report(self, run: RunFolder, first: Member) -> None:
        """Where node 0's bootstrap is dead and has not said how the run ended."""
        state = run.recorded_state()
        if state.is_terminal:
            return
        who = f"the bootstrap of node 0 on {first.entry.host}"
        end = EngineEnd.lost(f"{who} was killed", 0)
        if not any(event["event"] == "bootstrap_up" for event in run.events()):
            end = EngineEnd.failed(f"{who} ended before it began: {_last_words(run)}", 0)
        finish(run, end._replace(host=first.entry.host), began=state.started or state.submitted)

    def cancel(self, run: RunFolder, by: str) -> None:
        with contextlib.suppress(ComputeError):
            self.refresh(run)
        if run.recorded_state().is_terminal:
            return
        run.append_event("cancel_requested", by=by)
        first, *others = self._members(run)

        def tell(one: Member) -> Any:
            return ask(one.host, "cancel", one.run_dir, ranks=[one.rank])

        (told,) = each([first], tell)
        if told == [0]:
            return  # node 0 tells the others
        each(others, tell)  # they end by themselves where it is gone, and tell it where they reach it
        if isinstance(told, JobsdkError):
            raise ComputeError(f"run {run.name}: {told}; the other nodes were stopped")

    def ask(self, run: RunFolder, request: str) -> None:
        first = self._members(run)[0]
        first.host.write(first.run_dir, {f"requests/{request}": b""})

    # -- what it leaves ------------------------------------------------------------------------------------------

    def outputs(self, run: RunFolder) -> dict[str, str]:
        """On the machine of node 0, as a path there: what another job on this compute can take."""
        members = self._members(run)
        return run.output_paths(members[0].run_dir if members else None)

    def fetch(self, run: RunFolder, names: Sequence[str]) -> dict[str, str]:
        """As Compute.fetch. Outputs of nodes with folders of their own are put together: where two have written a file
        of one name, node 0's keeps it, and that of node K becomes NAME.node-K."""
        from jobsdk.compute.hosts.gathering import gather

        members = [one for one in self._members(run) if one.leader == one.rank]
        plan = run.plan()
        paths = {name: path for name, path in self.outputs(run).items() if name in names}

        def there(one: Member, name: str) -> str:
            if name == "default":
                return f"{one.run_dir}/outputs/default"
            given = plan["outputs"][name]["uri"]
            is_there = given is not None and not layout.is_remote(given)
            return str(paths[name]) if is_there else layout.output_path(plan, name, one.run_dir)

        places = {}
        for name in names:
            sources = [(one.rank, one.host, there(one, name)) for one in members]
            target = run.path / "outputs" / name
            run.note_left_out({name: gather(sources, target)})
            places[name] = str(target)
        return places

    # -- whether it works ----------------------------------------------------------------------------------------

    def check(self) -> list[Check]:
        checks: list[Check] = []

        def probe(entry: Entry) -> Any:
            given: dict[str, Any] = {"folder": self._folder, "run": "jobsdk-check", "gpus": entry.gpus, "count": None}
            asked = time.time()
            said = ask(self._host(entry.host), "probe", None, **given)
            return said, clock_difference(said, asked, time.time())

        for entry, said in zip(self._hosts, each(self._hosts, probe), strict=True):
            if isinstance(said, ComputeError):
                checks.append(Check.failed(entry.host, str(said).removeprefix(f"{entry.host}: ")))
            else:
                checks += _checks(entry, *said)
        return checks


def _checks(entry: Entry, said: Mapping[str, Any], ahead: float) -> list[Check]:
    free = said["free"] / 2**30
    sends = "rsync" if said["rsync"] else "tar"
    seen, wanted = said["gpus"], entry.gpus
    count = "no NVIDIA driver" if seen is None else f"{len(seen)} GPUs"
    clock = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
    fits = wanted is None or seen is None or len(seen) >= len(wanted)
    return [
        Check(f"{entry.host} answers", True, f"{said['node']}, Python {said['python']}, code goes by {sends}"),
        Check(f"{entry.host} folder", said["writable"], f"{said['folder']}, {free:.1f} GiB free",
              "" if said["writable"] else "set another `folder`, or make it writable"),
        Check(f"{entry.host} GPUs", fits, count if wanted is None else f"{count}, {len(wanted)} configured",
              "" if fits else f"correct `gpus` of {entry.host}"),
        Check(f"{entry.host} is free", True, said["in_use"] or "no job runs there"),
        *([Check.failed(f"{entry.host} locks", said["locks"])] if said["locks"] is not None else []),
        Check(f"{entry.host} clock", abs(ahead) < _MOST_CLOCK_DIFFERENCE_S, clock,
              "" if abs(ahead) < _MOST_CLOCK_DIFFERENCE_S else "let NTP set it: times in logs and events are its own"),
    ]  # fmt: skip


def _gpus_needed(plan: Plan) -> int | None:
    """How many GPUs each node uses where the job says so; None: all that the host has."""
    if plan["gpus_per_process"] is None:
        return None
    return ranks.gpus_of(plan, max(len(distributions.of(plan).node_processes(node)) for node in range(plan["nodes"])))


def _ports_of(run: str) -> list[int]:
    """Ports that hardly any other run has; of those that are taken node 0 passes over one."""
    number = int.from_bytes(hashlib.sha256(run.encode()).digest()[:4], "big")
    first = _FIRST_PORT + number % (_LAST_PORT - _FIRST_PORT - _PORTS)
    return list(range(first, first + _PORTS))


def _last_words(run: RunFolder) -> str:
    try:
        text = (run.logs / "node-0/bootstrap.log").read_text(errors="replace")
    except OSError:
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it wrote nothing"
