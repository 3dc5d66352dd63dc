"""The job that a user writes: `CommandJob`, and `command(...)`, which makes one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from jobsdk.errors import ValidationError
from jobsdk.findings import Finding, Path, Places, Report, in_order, nearest
from jobsdk.job.distribution import DISTRIBUTION, DISTRIBUTIONS, Distribution
from jobsdk.job.environment import Environment, EnvironmentKind
from jobsdk.job.identity import (
    IDENTITY,
    AmlTokenConfiguration,
    ManagedIdentityConfiguration,
    UserIdentityConfiguration,
)
from jobsdk.job.io import INPUTS, OUTPUTS, Input, Output, Value
from jobsdk.job.kinds import AsText, ListOf, LocalPath, MappingOf, Rewrite, Text, TypeName
from jobsdk.job.model import Model, Nested, field
from jobsdk.job.paths import local_path, relative_to, working_directory
from jobsdk.job.resources import CommandJobLimits, JobResourceConfiguration, QueueSettings
from jobsdk.job.restarts import Restarts
from jobsdk.job.scaling import ScalingConfig, TorchConfig
from jobsdk.job.services import SERVICE, JobService

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path as FilePath

    from jobsdk.client.explain import Explanation
    from jobsdk.job.workers import Layout

Identity = ManagedIdentityConfiguration | AmlTokenConfiguration | UserIdentityConfiguration
P = ParamSpec("P")
R = TypeVar("R")

_ENVIRONMENT_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_FREE = MappingOf(AsText(none=True))
#: Names of Python modules; also a setting of computes.
PRELOAD = ListOf(Text(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", says="the name of a Python module"), single=True)
#: Keys that Azure ML writes when it shows a job; they say nothing about what to run.
DUMP_ONLY = frozenset(("$schema", "id", "status", "creation_context", "log_files", "parameters"))

#: Azure ML's other types of jobs, and what to do with a file of one.
_OTHER_TYPES = {
    **dict.fromkeys(
        "automl data_transfer distillation finetuning import parallel spark".split(), "submit it with azure-ai-ml"
    ),
    "pipeline": "submit it with azure-ai-ml, or write each step as a command job",
    "sweep": "submit it with azure-ai-ml, or a command job once for each set of values",
}
_HINTS = {
    "script": "command", "cmd": "command", "args": "command", "arguments": "command", "source": "code",
    "source_directory": "code", "src": "code", "env": "environment", "env_vars": "environment_variables",
    "env_variables": "environment_variables", "experiment": "experiment_name", "target": "compute",
    "compute_target": "compute", "cluster": "compute", "distributed": "distribution",
}  # fmt: skip


def _explicit(function: Callable[P, R]) -> Callable[P, R]:
    """Raise ValidationError with the nearest name, not TypeError, for a keyword that the function does not have."""
    from functools import wraps

    code = function.__code__
    own, known = code.co_argcount, code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]

    @wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> R:
        report = Report()
        if len(args) > own:
            fix = f"name the parameter: {function.__name__}({known[0]}=...)"
            report.error((), f"{function.__name__}() takes only named values", fix)
        for name in keywords:
            if name not in known:
                near = _HINTS[name] if _HINTS.get(name) in known else nearest(name, known)
                fix = f"did you mean '{near}'?" if near else f"the parameters are {', '.join(known)}"
                report.error((name,), f"{function.__name__}() has no such parameter", fix)
        if report.errors and not own:  # what else is wrong; a method would change its object
            make: Callable[..., object] = function
            _note_errors(lambda: make(**{name: keywords[name] for name in known if name in keywords}), report)
        ValidationError.raise_for(report)
        return function(*args, **keywords)

    return checked


def _note_errors(make: Callable[[], object], report: Report) -> None:
    try:
        make()
    except ValidationError as error:
        report.findings += error.findings


class CommandJob(Restarts, hints=_HINTS):
    """A job that runs a command on one or more nodes. Fields are those of Azure ML's command job.

    You can assign to any field. Each assignment is checked at once, and raises `ValidationError` for an invalid value.
    `validate()` checks what depends on several fields or on files. Relative paths are relative to the job file, or, in
    a job made in Python, to the working directory at the time of use.
    """

    _ignored = DUMP_ONLY

    type: str = field(
        TypeName("command", fix="write 'type: command'; jobs of other types are not run"),
        default="command",
        doc="command",
    )
    name: str | None = field(
        Text(
            "[A-Za-z0-9][A-Za-z0-9_-]{0,254}",
            says="a name of letters, digits, - and _",
            fix="begin with a letter or digit and use only letters, digits, - and _ (at most 255)",
        ),
        default=None,
        doc="The name of the run, unique on its compute. Not given: one is made.",
    )
    display_name: str | None = field(Text(), default=None, doc="The name that people see. Not given: the name.")
    experiment_name: str | None = field(Text(empty=False), default=None, doc="The group of runs that it belongs to.")
    description: str | None = field(Text(), default=None, doc="What the job is for; Markdown.")
    tags: dict[str, str | None] = field(_FREE, default_factory=dict, doc="Free-form tags.")
    properties: dict[str, str | None] = field(_FREE, default_factory=dict, doc="Free-form properties.")
    command: str | None = field(
        Text(empty=False, fix="write the command that a shell runs in every process"),
        default=None,
        doc="What a shell runs in every process. ${{inputs.x}} and ${{outputs.y}} are replaced.",
    )
    code: str | None = field(
        LocalPath(empty=False), default=None, doc="The folder (or file) of code that goes with the job."
    )
    environment: str | Environment | None = field(
        EnvironmentKind(), default=None, doc="The software to run in: a name, or an environment written here."
    )
    environment_variables: dict[str, str] = field(
        MappingOf(
            AsText(warn_bool=True),
            key_pattern=_ENVIRONMENT_NAME,
            key_says="a letter or _ followed by letters, digits and _",
        ),
        default_factory=dict,
        doc="Environment variables of every process.",
    )
    secrets: list[str] = field(
        ListOf(Text(_ENVIRONMENT_NAME, says="the name of an environment variable")),
        default_factory=list,
        doc="Names of environment variables whose values are secret (jobsdk's own): taken from environment_variables, "
        "else from the submitter's environment, and stored nowhere but for the time of the run.",
    )
    inputs: dict[str, Input | Value] = field(INPUTS, default_factory=dict, doc="Values, files and folders to read.")
    outputs: dict[str, Output] = field(OUTPUTS, default_factory=dict, doc="Files and folders to write.")
    compute: str | None = field(
        Text(empty=False), default=None, doc="Where to run. Not given: the configured default, else local."
    )
    distribution: Distribution | None = field(DISTRIBUTION, default=None, doc="How the processes are started and meet.")
    scaling: ScalingConfig | None = field(
        Nested(ScalingConfig),
        default=None,
        doc="How many workers the job has and what each needs, in Ray Train's words (jobsdk's own). Nodes, processes "
        "and GPUs of processes follow from it.",
    )
    torch_config: TorchConfig | None = field(
        Nested(TorchConfig),
        default=None,
        doc="How the processes meet in torch.distributed, in Ray Train's words (jobsdk's own); "
        "jobsdk.train.init_process_group() uses it.",
    )
    resources: JobResourceConfiguration = field(
        Nested(JobResourceConfiguration),
        default_factory=lambda: JobResourceConfiguration.default(),
        doc="Nodes and their kind.",
    )
    preload: str | list[str] | None = field(
        PRELOAD,
        default=None,
        doc="Modules that each node imports once; its processes are forked from there (jobsdk's own). "
        "For commands of the form 'python script.py' or 'python -m module'. Not given: what the compute says.",
    )
    limits: CommandJobLimits | None = field(Nested(CommandJobLimits), default=None, doc="Limits of the run.")
    services: dict[str, JobService] | None = field(
        MappingOf(SERVICE), default=None, doc="Interactive services beside the job."
    )
    queue_settings: QueueSettings | None = field(
        Nested(QueueSettings), default=None, doc="The job's place in the queue."
    )
    identity: Identity | None = field(IDENTITY, default=None, doc="The identity that reaches the data.")
    parent_job_name: str | None = field(Text(empty=False), default=None, doc="The job that this one belongs to.")

    _base: str | None = None
    _places: Places | None = None
    #: The plain data that `_places` are the places of.
    _loaded: dict[str, Any] | None = None
    #: Whether what it was made of is a pipeline or the like: nothing else in it means anything here.
    is_of_another_type: bool = False

    @property
    def base_path(self) -> str | None:
        """The base of relative paths; None for the working directory at the time of use."""
        return self._base

    @base_path.setter
    def base_path(self, folder: str | os.PathLike[str] | None) -> None:
        self._base = None if folder is None else os.path.abspath(folder)

    def resolve(self, path: str | os.PathLike[str]) -> FilePath:
        """Return a local path of this job as an absolute one, without `file:` and with `~` expanded."""
        from pathlib import Path as FilePath

        return FilePath(os.path.normpath(os.path.join(self._base or working_directory(), local_path(os.fspath(path)))))

    def given_inputs(self) -> dict[str, Input | Value]:
        """Return the inputs, without optional ones that have no value."""
        return {name: item for name, item in self.inputs.items() if not getattr(item, "is_absent", False)}

    def findings(
        self, *, strict: bool = False, lay_out: Callable[[], Layout | None] | None = None
    ) -> tuple[Finding, ...]:
        """Return all errors and warnings: of each field, between fields, and of the files that they name.

        Reads the file system, changes nothing, and needs no network. `strict` makes unknown keys that are otherwise
        tolerated errors. `lay_out` is as for `rules.judge`.
        """
        from jobsdk.job import rules

        places = self._places
        if places is not None and self._loaded is not None:
            for path in _differing(self._loaded, self.to_dict(), ()):
                places = places.without(path)
        report = Report(places, strict=strict)
        self.check((), report)
        rules.judge(self, report, lay_out)
        return tuple(in_order(report.findings))

    def located(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return the findings with their places in the job file, where known."""
        report = Report(self._places)
        for finding in findings:
            (report.error if finding.is_error else report.warn)(finding.path, finding.message, finding.fix)
        return report.findings

    def validate(self, *, strict: bool = False) -> tuple[Finding, ...]:
        """Raise `ValidationError` if the job cannot run; return the warnings otherwise."""
        findings = self.findings(strict=strict)
        if any(finding.is_error for finding in findings):
            raise ValidationError(findings)
        return findings

    def explain(self, **options: Any) -> Explanation:
        """Describe each process: its environment and its command. See `jobsdk.client.explain` for the options."""
        from jobsdk.client.explain import explain

        return explain(self, **options)

    def dump(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the job as a YAML file that loads to an equal job. Local paths become relative to the file's folder.

        Creates the folder if necessary. Raises FileExists if the file exists and `overwrite` is false.
        """
        here = working_directory()
        path = os.path.join(here, path)
        folder = os.path.dirname(os.path.normpath(path))
        text = self.to_yaml(relative_to(self._base or here, folder))
        os.makedirs(folder, exist_ok=True)
        try:
            with open(path, "w" if overwrite else "x", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
        except FileExistsError:
            from jobsdk.errors import FileExists

            raise FileExists(f"{path} exists already. Fix: give another name, or in Python overwrite=True") from None

    def to_yaml(self, rewrite: Rewrite | None = None) -> str:
        """Return the job as the text of a job file. `rewrite` is applied to local paths."""
        from jobsdk.job.yaml_text import write

        return write(self.to_dict(rewrite))

    @_explicit
    def set_resources(
        self,
        *,
        instance_count: int | None = None,
        instance_type: str | None = None,
        properties: dict[str, Any] | None = None,
        locations: list[str] | None = None,
        shm_size: str | None = None,
        max_instance_count: int | None = None,
        docker_args: str | list[str] | None = None,
        gpus_per_process: float | None = None,
    ) -> None:
        """Set the given resources and keep the others; see `JobResourceConfiguration`."""
        given = {name: value for name, value in locals().items() if name != "self" and value is not None}
        self.resources = JobResourceConfiguration(**{**self.resources.to_dict(), **given})

    @_explicit
    def set_limits(
        self,
        *,
        timeout: float | str | None = None,
        hang_timeout: float | str | None = None,
        grace_period: float | str | None = None,
        rendezvous_timeout: float | str | None = None,
    ) -> None:
        """Set the limits; see `CommandJobLimits`."""
        given = {name: value for name, value in locals().items() if name != "self" and value is not None}
        self.limits = CommandJobLimits(**given)

    @_explicit
    def set_queue_settings(self, *, job_tier: str | None = None, priority: str | None = None) -> None:
        """Set the given queue settings and keep the others; see `QueueSettings`."""
        given = {name: value for name, value in locals().items() if name != "self" and value is not None}
        self.queue_settings = QueueSettings(**{**_fields_of(self.queue_settings), **given})

    def __call__(self, **inputs: Any) -> CommandJob:
        """Return a copy of the job with other values for the given inputs."""
        import copy

        unknown = [name for name in inputs if name not in self.inputs]
        report = Report()
        for name in unknown:
            near = nearest(name, self.inputs)
            report.error(("inputs", name), "the job has no such input", f"did you mean '{near}'?" if near else "")
        ValidationError.raise_for(report)
        job = copy.deepcopy(self)
        job.inputs = {**job.inputs, **inputs}
        return job

    def _fill(self, values: Mapping[Any, Any], path: Path, report: Report) -> None:
        kind = values.get("type")
        fix = _OTHER_TYPES.get(kind.strip().lower()) if isinstance(kind, str) else None
        if fix is not None:
            object.__setattr__(self, "is_of_another_type", True)
            report.error((*path, "type"), f"jobs of the type {str(kind).strip().lower()} do not run here", fix)
            values = {}
        super()._fill(values, path, report)

    @classmethod
    def _suggest(cls, name: Any) -> str:
        for home, models in _HOMES.items():
            if any(name in model._fields and name != "type" for model in models):
                return f"it belongs under {home}: write {home}.{name}"
            meant = next((model._hints[name] for model in models if name in model._hints), None)
            if meant and name not in cls._hints:
                return f"did you mean {home}.{meant}?"
        near = cls._hints.get(name) or nearest(name, cls._fields)
        if not near:
            for home, models in _HOMES.items():
                inner = next(filter(None, (nearest(name, set(model._fields) - {"type"}) for model in models)), None)
                if inner:
                    return f"did you mean {home}.{inner}?"
        return super()._suggest(name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self._fields and self._places is not None:
            self._places = self._places.without((name,))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CommandJob):
            return NotImplemented
        return self.to_dict(self._absolute) == other.to_dict(other._absolute)

    def __repr__(self) -> str:
        from jobsdk.job.secret_rules import shown

        return super(CommandJob, shown(self)).__repr__()

    def _repr_html_(self) -> str:
        from jobsdk import notebook
        from jobsdk.job.secret_rules import shown

        return notebook.views().of_job(shown(self))

    def _absolute(self, path: str) -> str:
        return str(self.resolve(path))


_HOMES: dict[str, tuple[type[Model], ...]] = {
    "resources": (JobResourceConfiguration,),
    "limits": (CommandJobLimits,),
    "queue_settings": (QueueSettings,),
    "scaling": (ScalingConfig,),
    "torch_config": (TorchConfig,),
    "distribution": DISTRIBUTIONS,
}


def _differing(then: Any, now: Any, path: Path) -> Iterator[Path]:
    """The paths at which two sets of plain data differ."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in {**then, **now}:
            yield from _differing(then.get(key), now.get(key), (*path, key))
    elif then != now:
        yield path


def _fields_of(model: Model | None) -> dict[str, Any]:
    return {name: getattr(model, name) for name in model._fields} if model is not None else {}


@_explicit
def command(
    *,
    command: str | None = None,
    name: str | None = None,
    display_name: str | None = None,
    description: str | None = None,
    tags: Mapping[str, Any] | None = None,
    properties: Mapping[str, Any] | None = None,
    experiment_name: str | None = None,
    environment: str | Environment | Mapping[str, Any] | None = None,
    environment_variables: Mapping[str, Any] | None = None,
    secrets: Sequence[str] | None = None,
    distribution: Distribution | Mapping[str, Any] | None = None,
    compute: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    instance_count: int | None = None,
    instance_type: str | None = None,
    locations: Sequence[str] | None = None,
    docker_args: str | Sequence[str] | None = None,
    shm_size: str | None = None,
    max_instance_count: int | None = None,
    gpus_per_process: float | None = None,
    timeout: float | str | None = None,
    hang_timeout: float | str | None = None,
    grace_period: float | str | None = None,
    rendezvous_timeout: float | str | None = None,
    code: str | os.PathLike[str] | None = None,
    identity: Identity | Mapping[str, Any] | None = None,
    is_deterministic: bool = True,
    services: Mapping[str, Any] | None = None,
    job_tier: str | None = None,
    priority: str | None = None,
    parent_job_name: str | None = None,
    resources: JobResourceConfiguration | Mapping[str, Any] | None = None,
    limits: CommandJobLimits | Mapping[str, Any] | None = None,
    preload: str | Sequence[str] | None = None,
    max_restarts: int | None = None,
    max_preemptions: int | None = None,
    max_no_progress: int | None = None,
    restart_delay: float | str | None = None,
    retry_on: int | str | Sequence[int | str] | None = None,
    never_retry_on: int | str | Sequence[int | str] | None = None,
    queue_settings: QueueSettings | Mapping[str, Any] | None = None,
    scaling: ScalingConfig | Mapping[str, Any] | None = None,
    torch_config: TorchConfig | Mapping[str, Any] | None = None,
) -> CommandJob:
    """Create a job that runs a command. The parameters are those of Azure ML's `command()`, and `CommandJob`'s fields.

    `instance_count` to `gpus_per_process` are fields of `resources`, `timeout` to `rendezvous_timeout` of `limits`,
    `job_tier` and `priority` of `queue_settings`; both spellings mean the same, and a field with two
    different values is an error. `is_deterministic` is accepted and has no effect. Raises `ValidationError`.
    """
    given = dict(locals())
    given.pop("is_deterministic")
    report = Report()
    for home, models in (("resources", resources), ("limits", limits), ("queue_settings", queue_settings)):
        names = [name for name in _HOMES[home][0]._fields if name in given and name not in CommandJob._fields]
        parameters = {name: value for name in names if (value := given.pop(name)) is not None}
        given[home] = _merge(home, models, parameters, report)
    job = CommandJob.structure(given, (), report)
    ValidationError.raise_for(report)
    return job


def _merge(home: str, given: Any, parameters: Mapping[str, Any], report: Report) -> Any:
    """Merge the mapping or object `given` for a field with the parameters of `command()`."""
    if not parameters:
        return given
    if isinstance(given, _HOMES[home]):
        given = given.to_dict()
    elif given is None:
        given = {}
    elif not isinstance(given, Mapping):
        return given
    for name, value in parameters.items():
        if given.get(name) not in (None, value):
            report.error((name,), f"is given twice: here, and as {home}.{name}", "write it once")
    return {**given, **parameters}
