"""What every kind of compute offers."""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from jobsdk.bootstrap.system.private import FOLDER_MODE
from jobsdk.errors import ComputeError
from jobsdk.runs.refresh import Pace

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.findings import Finding
    from jobsdk.job.command import CommandJob
    from jobsdk.job.machines import Catalogue, Machine
    from jobsdk.job.workers import Layout, NodeCapacity
    from jobsdk.planning.placement import Placement
    from jobsdk.runs.folder import RunFolder
    from jobsdk.runs.logs import Sink, View
    from jobsdk.runs.state import State

Spec = dict[str, Any]

#: Settings that every type has, with their meaning.
COMMON: Mapping[str, str] = {
    "network": "interfaces and InfiniBand of the nodes: a mapping, see docs/network.md",
    "instance_type": "the kind of its machines, where a job does not say it: see `jobsdk compute machines`",
    "folder_mode": 'mode of new folders, as "0750" or "2770" for a group; without it 0700: for you alone',
    "refuse_outside_links": "true: code with symbolic links that lead out of its folder is refused, not sent",
}


class Check(NamedTuple):
    """One thing that was looked at; `fix` says what to do where it is not well."""

    what: str
    is_well: bool
    found: str
    fix: str = ""

    @classmethod
    def failed(cls, what: str, error: object, fix: str = "") -> Check:
        """What an error says, with its own fix or else the one given."""
        found, _, own = str(error).partition(". Fix: ")
        return cls(what, False, found, own or fix)


class Wanted(NamedTuple):
    """Which runs are asked for; None: all."""

    status: str | None = None
    tag: str | None = None
    experiment: str | None = None
    archived: bool | None = None


Warn = Callable[[str], None]


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a compute as they may be shown: what looks secret is masked, and headers are, all of them."""
    from jobsdk.bootstrap.spec.secrets import MASK, Redactor

    shown: dict[str, Any] = Redactor().data(dict(settings))
    if isinstance(shown.get("headers"), dict):
        shown["headers"] = dict.fromkeys(shown["headers"], MASK)
    return shown


class Compute(ABC):
    """A place where jobs run.

    A job goes through `place`, `plan`, `findings`, `compile`, `prepare`, `submit` in this order, once through each.
    `at` is what `place` gave. What `compile` gives is what `submit` takes, so that a compiled job that is shown is the
    one that would run.
    """

    type: ClassVar[str]
    #: The names that its entry in computes.yml may have besides `type` and those of COMMON, each with its meaning.
    settings_known: ClassVar[Mapping[str, str]] = {}
    #: How often `refresh` is called while a run is followed.
    pace: ClassVar[Pace] = Pace(1.0, 10.0)
    #: Whether a job may have settings for the type, in `resources.properties.TYPE`.
    takes_job_settings: ClassVar[bool] = False
    #: Whether its nodes are processes of this machine.
    is_this_machine: ClassVar[bool] = False
    #: Whether a job can run in a folder of this machine, without a copy of the code.
    can_run_in_place: bool = False
    #: What is known of the environment that its processes start from, in words.
    inherited: ClassVar[Mapping[str, str]] = MappingProxyType({"PATH": "<PATH of the node>"})
    #: The site's own machines, in the configuration that the compute is from; None: it is read when they are needed.
    site_machines: Mapping[str, Mapping[str, Any]] | None = None

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        from jobsdk.findings import meant

        self.name = name
        self.settings = dict(settings)
        known = self.all_settings()
        for key in settings:
            if key not in known:
                help = meant(key, known, f"it knows {', '.join(known)}")
                raise ComputeError(f"compute {name}: type {self.type} has no setting {key!r}: {help}")
        for mistake in _mistakes_in_common(settings):
            raise ComputeError(f"compute {name}: {mistake}")
        for setting, words in self.mistakes({key: settings[key] for key in settings if key in self.settings_known}):
            raise ComputeError(f"compute {name}: {setting} {words}")

    @property
    def folder_mode(self) -> int:
        """The mode of the folders that are made for its runs, here and there: what is in them gets the same rights."""
        return mode_of(self.settings.get("folder_mode", FOLDER_MODE))

    def mistakes(self, own: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        """What is wrong with the settings of this type: (setting, words). Their names are known."""
        return ()

    @classmethod
    def job_mistakes(cls, own: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        """What is wrong with the settings that a job has for the type: (setting, words)."""
        return ()

    @classmethod
    def job_settings(cls, job: CommandJob) -> Mapping[str, Any]:
        """What a job sets for the type itself, where that is sound: `findings` says what is wrong."""
        own = (job.resources.properties or {}).get(cls.type) or {}
        return own if isinstance(own, Mapping) and not any(cls.job_mistakes(own)) else {}

    @classmethod
    def all_settings(cls) -> dict[str, str]:
        """Every setting of this type, with its meaning."""
        return {**cls.settings_known, **COMMON}

    def place(self, job: CommandJob) -> Placement:
        """Where a valid job goes here."""
        from jobsdk.planning.placement import Placement

        layout, machine = None, self.machine(job)
        if job.scaling is not None:
            from jobsdk.job import workers

            layout = workers.lay_out(job, self.room(job, machine))
        catalogue = None if machine is None else self.catalogue
        return Placement(self.settings_for(job, layout), layout, machine, catalogue)

    def settings_for(self, job: CommandJob, layout: Layout | None) -> dict[str, Any]:
        """The settings that hold for a job: those of the compute, with what the job sets in their place."""
        return self.settings

    def plan(self, job: CommandJob, at: Placement, *, name: str) -> Plan:
        """The plan of a valid job as it runs here, as the run `name`, with its secrets."""
        from jobsdk.planning.plan import whole_plan

        settings, network = self.settings, None
        if settings.get("network") or at.machine is not None:
            from jobsdk.compute.network import planned

            network = planned(settings.get("network"), at.machine)
        return whole_plan(job, name=name, preload=settings.get("preload"), network=network, layout=at.layout)

    def room(self, job: CommandJob, machine: Machine | None) -> NodeCapacity | None:
        """What a node of the job would have here, as far as it is known."""
        from jobsdk.job.workers import room_of

        return room_of(machine)

    def machine(self, job: CommandJob) -> Machine | None:
        """What is known of the machines on which the job would run."""
        name = job.resources.instance_type or self.settings.get("instance_type")
        return None if name is None else self.catalogue.find(name)

    @cached_property
    def catalogue(self) -> Catalogue:
        """All kinds of machines that are known. Raises ComputeError for a computes.yml that cannot be read."""
        from jobsdk import compute as computes
        from jobsdk.job.machines import known

        own = self.site_machines
        return known().joined(computes.configuration().machines if own is None else own)

    @abstractmethod
    def findings(self, job: CommandJob, plan: Plan, at: Placement, *, build_env: bool = False) -> Sequence[Finding]:
        """What this compute cannot do with a valid job (errors) or ignores of it (warnings). Changes nothing.

        What `at` itself says is not among them.
        """

    @abstractmethod
    def compile(
        self, job: CommandJob, plan: Plan, at: Placement, *, in_place: bool = False, build_env: bool = False
    ) -> Spec:
        """The native spec: everything that `submit` needs besides the plan, as JSON. Changes nothing.

        There were no errors among `findings`, and `in_place` is given only where `can_run_in_place`.
        """

    def native(self, spec: Spec) -> str:
        """A spec in the form that the engine itself reads: a script, manifests."""
        import yaml

        return yaml.safe_dump(spec, sort_keys=False, allow_unicode=True, width=120)

    @abstractmethod
    def prepare(self, spec: Spec, warn: Warn) -> None:
        """What may take long, and may fail, before there is a run. Raises ComputeError."""

    @abstractmethod
    def submit(self, spec: Spec, run: RunFolder, warn: Warn) -> None:
        """Start the run whose folder holds the plan and `spec`; returns at once. Raises JobsdkError."""

    def is_same(self, spec: Spec, run: RunFolder) -> bool:
        """Whether the run was submitted with this very spec, for engines that take a repeated submission for one."""
        return False

    @abstractmethod
    def cancel(self, run: RunFolder, by: str) -> None:
        """Ask that the run be ended; a run that has ended stays as it is."""

    @abstractmethod
    def refresh(self, run: RunFolder) -> None:
        """Bring the run's folder here up to date: logs, events and report from where the run is, and as events what
        only the engine knows (queued, allocated, ended without a word of ours). Does nothing for a run that has ended.

        May use the network, at most for some seconds. Raises ComputeError where the engine cannot be asked.
        """

    def read(self, run: RunFolder, view: View | None) -> None:
        """`refresh`, and bring the lines that a view of the run's logs shows; None: no lines.

        The two differ where the lines of many ranks cost much.
        """
        self.refresh(run)

    @contextlib.contextmanager
    def following(self, run: RunFolder, view: View | None) -> Iterator[Callable[[], None]]:
        """For as long as somebody follows the run: what to call, at the compute's pace, for the same as `read`."""
        yield lambda: self.read(run, view)

    def status(self, run: RunFolder) -> State:
        """How far the run is; what is known here where the engine cannot be asked now."""
        with contextlib.suppress(ComputeError):
            self.refresh(run)
        return run.recorded_state()

    def wait(self, run: RunFolder, timeout: float | None) -> State:
        """Wait for the run's end. Raises TimeoutError after `timeout` seconds."""
        from jobsdk.runs.refresh import Refresh

        with contextlib.suppress(ComputeError):
            self.refresh(run)
        with self.following(run, None) as refresh:
            return run.wait(timeout, Refresh(refresh, self.pace))

    def logs(self, run: RunFolder, out: Sink, view: View, *, follow: bool) -> State:
        """Write the ranks' lines to `out`: those there are, or with `follow` all until the run's end."""
        from jobsdk.runs.logs import Follower

        if not follow:
            self.read(run, view)
            Follower(run, out, view).drain()
            return run.recorded_state()
        with self.following(run, view) as refresh:
            return Follower(run, out, view, refresh, self.pace).follow()

    def ask(self, run: RunFolder, request: str) -> None:
        """Pass a request on to the run's node 0: `cancel`, or `stacks-ID`, whose answer is `stacks-ID.json` in the
        run's folder (see `jobsdk.bootstrap.agent.requests`). Raises JobsdkError."""
        raise ComputeError(f"a run on {self.name} (type {self.type}) cannot be asked for its {request.split('-')[0]}")

    def change(self, run: RunFolder, changes: Mapping[str, Any]) -> None:
        """Make changes of a run's names, tags, properties or `archived` where the engine keeps them, too.

        Most keep none. Raises ComputeError.
        """
        return

    def bring_all(self, most: int, wanted: Wanted, *, is_of_target: bool) -> None:
        """Make folders for the newest runs of the engine that fit, at most so many, where others submit runs, too; of
        those on the compute's target alone if `is_of_target`. Raises ComputeError."""
        return

    def for_rerun(self, run: RunFolder) -> tuple[Mapping[str, Any], str]:
        """What another run of a run's job does differently: as `params_override` of load_job, and in words."""
        return {}, ""

    def use_bootstrap(self, job: CommandJob) -> None:
        """Change a job so that jobsdk's bootstrap starts it, where the engine could do so without."""
        return

    def outputs(self, run: RunFolder) -> dict[str, str]:
        """Where each named output of the run is, in a form that another job can take as an input's path."""
        return run.output_paths()

    def fetch(self, run: RunFolder, names: Sequence[str]) -> dict[str, str]:
        """Bring the named outputs of an ended run to this machine; where each is then. `default` is ./outputs.

        Raises ComputeError.
        """
        outputs = {"default": str(run.path / "outputs" / "default"), **self.outputs(run)}
        return {name: outputs[name] for name in names}

    def check(self) -> Sequence[Check]:
        """Whether jobs can be run there now, found out by asking: what `jobsdk compute check` says."""
        return []


def _mistakes_in_common(settings: Mapping[str, Any]) -> Iterator[str]:
    if "network" in settings:
        from jobsdk.compute import network

        yield from network.mistakes(settings["network"])
    if not isinstance(settings.get("instance_type", ""), str):
        yield "instance_type must be a name, as in `jobsdk compute machines`"
    if not isinstance(settings.get("refuse_outside_links", False), bool):
        yield "refuse_outside_links must be true or false"
    try:
        mode_of(settings.get("folder_mode", FOLDER_MODE))
    except ValueError as error:
        yield f"folder_mode {error}"


def mode_of(given: object) -> int:
    """A mode from text of octal digits, or from a number as YAML reads 0750. Raises ValueError."""
    mode = 0
    if isinstance(given, str) and re.fullmatch("[0-7]{3,5}", given):
        mode = int(given, 8)
    elif isinstance(given, int):
        mode = given
    if mode & 0o700 != 0o700 or mode & ~0o2775:
        raise ValueError(
            'must be octal digits in quotes that give you all rights and others no right to write, as "0750" '
            f'(your group may read) or "2770" (your group may write), not {given!r}'
        )
    return mode
