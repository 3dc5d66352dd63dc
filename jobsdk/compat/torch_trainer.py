"""`TorchTrainer`: Ray Train's class of this name, on every compute.

trainer = TorchTrainer(train_func, train_loop_config={"lr": 1e-3}, scaling_config=ScalingConfig(num_workers=2))
result = trainer.fit()
result.metrics["loss"]

Within `train_func` are `report`, `get_context`, `get_checkpoint` and `get_device` of `jobsdk.train`. What differs from
Ray Train is in docs/ray-train.md.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jobsdk.errors import JobFailed, ValidationError
from jobsdk.findings import Path, Report, nearest
from jobsdk.job.kinds import Integer, PlainMapping, Text
from jobsdk.job.model import Model, Nested, field
from jobsdk.job.scaling import ScalingConfig, TorchConfig
from jobsdk.train.checkpoints import RETENTION

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.report import RunReport
    from jobsdk.client.run import Run
    from jobsdk.compat.training_result import Result
    from jobsdk.functions import FunctionJob

_FOR_EVER = 1_000_000  # restarts of a job that are to have no end

#: What Ray's TorchTrainer has besides, and why there is nothing like it here.
_OF_RAY_ALONE = {
    "datasets": "Ray Data is not part of it: read the data in train_func, or give a job inputs",
    "dataset_config": "Ray Data is not part of it: read the data in train_func, or give a job inputs",
    "data_config": "Ray Data is not part of it: read the data in train_func, or give a job inputs",
    "validation_config": "validate in train_func, or in a job of its own",
    "metadata": "deprecated by Ray, too: give tags",
    "resume_from_checkpoint": "deprecated by Ray, too: put its path into train_loop_config and read it there",
    "backend_config": "write torch_config",
}
_OWN = ("train_loop_per_worker", "train_func", "train_loop_config", "torch_config", "scaling_config", "run_config")


class TrainingFailedError(JobFailed):
    """The training failed. Its cause is the function's exception; `worker_failures` has the exceptions by rank.

    `report` is the run's, with the exit code.
    """

    def __init__(
        self,
        message: str,
        report: RunReport | None = None,
        worker_failures: Mapping[int, BaseException] | None = None,
    ) -> None:
        super().__init__(message, report)
        self.worker_failures = dict(worker_failures or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.report, self.worker_failures)


class FailureConfig(Model):
    """How often a failed training restarts, from its last checkpoint if `train_func` loads one."""

    max_failures: int = field(Integer(-1), default=0, doc="Starts after a failure; -1: without end.")
    max_preemption_failures: int = field(
        Integer(-1), default=0, doc="Starts after the nodes were taken away with a warning; -1: without end."
    )


class CheckpointConfig(Model):
    """Which checkpoints stay. Fields are Ray Train's."""

    num_to_keep: int | None = field(Integer(1), default=None, doc="How many stay; not given, all.")
    checkpoint_score_attribute: str | None = field(
        Text(empty=False), default=None, doc="The metric whose best values decide; not given, the newest stay."
    )
    checkpoint_score_order: str = field(Text(choices=("max", "min")), default="max", doc="Which values are the best.")

    def variables(self) -> dict[str, str]:
        """The same for `jobsdk.train` in the workers."""
        if self.num_to_keep is None:
            return {}
        rule: dict[str, Any] = {"newest": self.num_to_keep}
        if self.checkpoint_score_attribute is not None:
            rule = {"newest": 1, "best": self.num_to_keep, "metric": self.checkpoint_score_attribute}
        return {RETENTION: json.dumps({**rule, "mode": self.checkpoint_score_order})}


class RunConfig(Model):
    """A training's name and where it keeps its checkpoints. Fields are Ray Train's."""

    name: str | None = field(Text(empty=False), default=None, doc="The experiment, and the run's display name.")
    storage_path: str | None = field(
        Text(empty=False),
        default=None,
        doc="A folder that all nodes see, for checkpoints. Not given: the run's outputs.",
    )
    failure_config: FailureConfig | None = field(Nested(FailureConfig), default=None, doc="When it is started again.")
    checkpoint_config: CheckpointConfig | None = field(
        Nested(CheckpointConfig), default=None, doc="Which checkpoints stay."
    )
    worker_runtime_env: dict[str, Any] | None = field(
        PlainMapping(), default=None, doc="{env_vars: variables of the workers}."
    )

    def _fill(self, values: Mapping[Any, Any], path: Path, report: Report) -> None:
        super()._fill(values, path, report)
        scheme = re.match("[A-Za-z][A-Za-z0-9+.-]*://", self.storage_path or "")
        if scheme:
            fix = "name a folder that all nodes have mounted, or leave it out: checkpoints come back as outputs"
            report.error((*path, "storage_path"), f"must be a folder, and {scheme[0]} is an address", fix)
        if self.storage_path and self.name and (self.name.startswith("/") or ".." in self.name.split("/")):
            report.error((*path, "name"), "leads out of storage_path, in which it names a folder", "write a plain name")
        for name, value in (self.worker_runtime_env or {}).items():
            where = (*path, "worker_runtime_env", str(name))
            if name != "env_vars":
                report.error(where, "only env_vars can be given here", "set runtime_env of the compute", key=True)
            elif not isinstance(value, Mapping):
                report.error(where, "must be a mapping of variables", "write {env_vars: {NAME: value}}")

    @classmethod
    def _unknown(cls, name: Any, value: Any, path: Path, report: Report) -> None:
        reasons = {
            "storage_filesystem": "storage_path is a folder that the nodes see",
            "callbacks": "the run's events and logs say how it goes: see fit().run",
        }
        if name in reasons:
            report.error((*path, str(name)), "there is no such key here", reasons[name], key=True)
        else:
            super()._unknown(name, value, path, report)


class TorchTrainer:
    """Calls a function in every worker, within a process group of torch.distributed.

    `train_loop_per_worker` (or `train_func`) takes nothing, or `train_loop_config`. `scaling_config` says how many
    workers there are and what each needs, `torch_config` how they meet, `run_config` what the training is called and
    when it is started again. It runs on `compute`: not given, the Ray that this process has open, else the configured
    default, else this machine. Each config may be a mapping. `options` are further fields of the job, as for
    `function()`: code, environment, inputs, limits, tags.

    Raises ValidationError, which is a ValueError, for all that is wrong in these; TypeError for what is no function.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any] | None = None,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        torch_config: TorchConfig | Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | Mapping[str, Any] | None = None,
        run_config: RunConfig | Mapping[str, Any] | None = None,
        compute: str | None = None,
        train_func: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        if (train_loop_per_worker is None) == (train_func is None):
            raise TypeError("TorchTrainer() takes one function: train_loop_per_worker, which is also called train_func")
        _refuse(options)
        self.train_loop_per_worker: Callable[..., Any] = train_loop_per_worker or train_func  # type: ignore[assignment]
        self.train_loop_config = train_loop_config
        self.torch_config = _config(TorchConfig, "torch_config", torch_config)
        self.scaling_config = _config(ScalingConfig, "scaling_config", scaling_config)
        self.run_config = _config(RunConfig, "run_config", run_config)
        self.compute = compute
        self._options = options
        self._job()  # what is wrong is told now

    def fit(self) -> Result:
        """Train to the end, and show the workers' output meanwhile.

        Raises TrainingFailedError, with what the function has raised as its cause. Ctrl-C cancels the run.
        """
        from jobsdk.client.foreground import attend
        from jobsdk.client.operations import JobOperations
        from jobsdk.compat import training_result

        target = _open_ray() if self.compute is None else None
        run = attend(lambda: JobOperations().create_or_update(self._job(), compute=target))
        error = run.exception()
        if error is not None:
            raise _failed(run, error) from (error if not isinstance(error, JobFailed) else None)
        return training_result.of(run)

    def _job(self) -> FunctionJob:
        from jobsdk.functions import function

        fields = {**self._of_run_config(), **self._options}
        if self.compute is not None:
            fields["compute"] = self.compute
        loop = _loop(self.train_loop_per_worker, self.train_loop_config)
        return function(loop, scaling=self.scaling_config, torch_config=self.torch_config, **fields)

    def _of_run_config(self) -> dict[str, Any]:
        """The fields of the job that say the same."""
        given = self.run_config
        fields: dict[str, Any] = {}
        if given.name is not None:
            fields.update(experiment_name=given.name, display_name=given.name)
        if given.failure_config is not None:
            counts = (given.failure_config.max_failures, given.failure_config.max_preemption_failures)
            failures, preemptions = (_FOR_EVER if count < 0 else count for count in counts)
            # Ray counts failures alone, whatever progress there was between them.
            fields.update(max_restarts=failures, max_preemptions=preemptions, max_no_progress=0)
        variables = dict((given.worker_runtime_env or {}).get("env_vars") or {})
        if given.storage_path is not None:
            import os

            parts = [os.path.abspath(os.path.expanduser(given.storage_path)), given.name or ""]
            variables["JOBSDK_STORAGE_PATH"] = os.path.join(*filter(None, parts))
        if given.checkpoint_config is not None:
            variables.update(given.checkpoint_config.variables())
        variables.update(self._options.get("environment_variables") or {})
        return {**fields, "environment_variables": variables}


def _refuse(options: Mapping[str, Any]) -> None:
    """Raise ValidationError for parameters of Ray's class alone, and for misspelled ones."""
    from jobsdk.job.command import command

    known = inspect.signature(command).parameters
    report = Report()
    for name in options:
        meant = "scaling_config" if name == "scaling" else nearest(name, [*known, *_OWN])
        if name in _OF_RAY_ALONE:
            report.error((name,), "there is no such parameter here", _OF_RAY_ALONE[name], key=True)
        elif name in ScalingConfig.__annotations__:
            fix = f"write scaling_config=ScalingConfig({name}=...)"
            report.error((name,), "there is no such parameter here", fix, key=True)
        elif meant in _OWN:
            report.error((name,), "there is no such parameter here", f"did you mean {meant!r}?", key=True)
    ValidationError.raise_for(report)


def _config(model: Any, name: str, given: Any) -> Any:
    if given is None:
        return model()
    report = Report()
    value = Nested(model).structure(given, (name,), report)
    ValidationError.raise_for(report)
    return value


def _open_ray() -> Any:
    """The compute that is the Ray which this process has open; None without one."""
    import sys

    if "ray" not in sys.modules:
        return None
    from jobsdk import compute as computes

    target: Any = computes.type_of("ray")("ray", {})
    return target if target.has_session() else None


def _loop(train_func: Callable[..., Any], config: Mapping[str, Any] | None) -> Callable[[], Any]:
    """What every worker calls. It travels by value, for in the job there is no jobsdk but `jobsdk.train`."""
    train_loop_config = _arguments(train_func, config)

    def loop() -> Any:
        __tracebackhide__ = True
        import gc
        import os

        from jobsdk import train

        train.init_process_group()
        gc.freeze()  # torch as well, which has come with the group
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", str(train.get_device()))  # as Ray Train has it
        value = train_func() if train_loop_config is None else train_func(train_loop_config)
        train.destroy_process_group()
        return value

    loop.__name__ = getattr(train_func, "__name__", "train_func")
    loop.__qualname__ = getattr(train_func, "__qualname__", loop.__name__)
    return loop


def _arguments(function: Callable[..., Any], config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The config, if the function takes one, else None. Raises TypeError, or ValueError as Ray does."""
    if not callable(function):
        raise TypeError(f"train_loop_per_worker must be a function, not an object of type {type(function).__name__}")
    from jobsdk.functions import check_kind

    check_kind(function)
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"train_loop_config must be a mapping, not an object of type {type(config).__name__}")
    try:
        taken = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have none
        taken = []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [one for one in taken if one.default is one.empty and one.kind not in variable]
    if len(needed) > 1 or any(one.kind not in by_position for one in needed):
        names = ", ".join(one.name for one in needed)
        raise ValueError(
            f"train_loop_per_worker takes nothing or one config, and this one needs {names}. "
            "Fix: put them into train_loop_config"
        )
    if needed or (config is not None and any(one.kind in by_position for one in taken)):
        return dict(config or {})
    if config:
        import logging

        logging.getLogger("jobsdk").warning("train_loop_config is not used: train_loop_per_worker takes no argument")
    return None


def _failed(run: Run, error: BaseException) -> TrainingFailedError:
    if isinstance(error, JobFailed):
        return TrainingFailedError(str(error), error.report)
    report = run.report
    cause = report.get("cause") or {}
    rank, advice = cause.get("rank"), cause.get("advice")
    text = f"training failed in rank {rank} of run {run.name}: {type(error).__name__}: {str(error)[:200]}"
    if advice and "Fix: " not in str(error):
        text += f"\nadvice: {advice}"
    return TrainingFailedError(text, report, {rank: error} if rank is not None else {})
