"""`TorchDistributor`: PySpark's class of this name, on this machine without Spark, and on every compute.

distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
model = distributor.run(train, 1e-3)                 # what rank 0 returned
distributor.run("train.py", "--learning-rate=1e-3")  # a script: None

What is the same as in PySpark and what differs is the table in docs/torch-distributor.md.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jobsdk.errors import ComputeError, JobsdkError

if TYPE_CHECKING:
    from pathlib import Path

    from jobsdk.compute.base import Compute
    from jobsdk.functions import FunctionJob
    from jobsdk.job.command import CommandJob

_MASK = "CUDA_VISIBLE_DEVICES"
_PER_TASK, _OF_DRIVER = "spark.task.resource.gpu.amount", "gpu"
_SSL, _IGNORE_SSL = "spark.ssl.enabled", "pytorch.spark.distributor.ignoreSsl"
SPARK = "spark"


class TorchDistributor:
    """Runs a function or a script as the processes of torch.distributed.

    `num_processes` is how many there are in all. With `local_mode` they run on this machine, in the working directory;
    without, on the compute named `compute`: not given, the SparkSession of this process, else the one compute of type
    spark in computes.yml, else its default. With `use_gpu` every process has a GPU: `LOCAL_RANK` is its number among
    those that are visible.

    Raises TypeError and ValueError for wrong arguments, RuntimeError where there are no GPUs to use, ComputeError where
    no compute is meant. If this machine has GPUs, but fewer than `num_processes`, that becomes as many, with a warning.
    """

    def __init__(
        self, num_processes: int = 1, local_mode: bool = True, use_gpu: bool = True, *, compute: str | None = None
    ) -> None:
        self.num_processes = _count(num_processes)
        self.local_mode = _flag("local_mode", local_mode)
        self.use_gpu = _flag("use_gpu", use_gpu)
        if compute is not None and self.local_mode:
            raise ValueError(f"local_mode is this machine, and compute is {compute!r}. Fix: set local_mode=False")
        #: How many tasks of Spark, or nodes, they are the processes of; here each counts as one, as in PySpark.
        self.num_tasks = self.num_processes
        self._gpus: list[str] = []  # of this machine, those for the processes
        if self.local_mode:
            self._compute: Compute = _named("local")
            if self.use_gpu:
                self._take_gpus()
                self.num_tasks = self.num_processes
        else:
            self._compute = _cluster(compute)
            self.num_tasks = self._size().get("instance_count", self.num_processes)  # what does not fit is told now

    def run(self, main: Callable[..., Any] | str | os.PathLike[str] | None = None, /, *args: Any, **kwargs: Any) -> Any:
        """Run it to its end, showing meanwhile what the processes write; what the function returned in rank 0.

        `main` is a function, called as `main(*args, **kwargs)` in every process, or the path of a Python script, whose
        command line are the `args` as texts; that gives None. A function and its result travel by cloudpickle.

        Raises what the function has raised, with the traceback there as the cause; JobFailed for all else that fails,
        with the exit code in its report; ValueError for a script with keyword arguments. Ctrl-C cancels the run.
        """
        if main is None:
            main = kwargs.pop("main", None)  # which has a name in PySpark
        job = self._job(main, args, kwargs)
        if not self.local_mode:
            _refuse_encryption(self._compute)
        from jobsdk.client.foreground import attend
        from jobsdk.client.operations import JobOperations

        operations = JobOperations()
        run = attend(lambda: operations.create_or_update(job, compute=self._compute, in_place=self.local_mode))
        value = run.result()
        return value if run.is_of_function else None

    def _job(self, main: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CommandJob | FunctionJob:
        options = self._size()
        if not isinstance(main, str | os.PathLike):
            if not callable(main):
                raise TypeError(f"run() takes a function or the path of a script, not a {type(main).__name__}")
            from jobsdk.functions import function

            return function(in_place=self.local_mode, **options)(main).job(*args, **kwargs)
        if kwargs:
            raise ValueError(
                f"a script takes no keyword arguments, got {', '.join(kwargs)}. Fix: --{next(iter(kwargs))}=…"
            )
        script = _script(main)
        from jobsdk.job.command import command

        words = [str(script) if self.local_mode else script.name, *map(str, args)]
        text = " ".join(["python", *map(_quoted, words)])
        return command(command=text, code=None if self.local_mode else script.parent, **options)

    # -- how many, and where ---------------------------------------------------------------------------------------

    def _size(self) -> dict[str, Any]:
        """The fields of the job that say how many processes it has, and what they see of GPUs."""
        from jobsdk.job.distribution import PyTorchDistribution

        if self.local_mode:
            mask = {_MASK: ",".join(self._gpus)} if self.use_gpu else {}
            processes = PyTorchDistribution(process_count_per_instance=self.num_processes)
            return {"distribution": processes, "environment_variables": mask}
        if not self.use_gpu:
            hidden: dict[str, Any] = {"environment_variables": {_MASK: ""}}
            if self._compute.type != SPARK:
                from jobsdk.job.scaling import ScalingConfig

                return {**hidden, "scaling": ScalingConfig(num_workers=self.num_processes)}
            return {**hidden, "instance_count": self.num_processes, "distribution": PyTorchDistribution()}
        if self._compute.is_this_machine:
            raise ValueError("use_gpu, and the compute is this machine. Fix: set local_mode=True")
        each = _gpus_per_node(self._compute)
        if self._compute.type != SPARK:
            each = min(each, self.num_processes)  # a node may have more of them
        if each and self.num_processes % each:
            raise RuntimeError(
                f"num_processes is {self.num_processes}, and each node, or task, has {each} GPUs. Fix: a multiple"
            )
        size: dict[str, Any] = {
            "instance_count": self.num_processes // (each or 1),
            "distribution": PyTorchDistribution(process_count_per_instance=each or 1),
        }
        # All processes of a node see all its GPUs, so that LOCAL_RANK is the number of its own.
        return size if each else {**size, "gpus_per_process": 1}

    def _take_gpus(self) -> None:
        there = _gpus_here()
        if not there:
            raise RuntimeError("use_gpu is true, and this machine shows no GPU. Fix: use_gpu=False, or set " + _MASK)
        if self.num_processes > len(there):
            import logging

            text = "num_processes is %d, and there are %d GPUs: it becomes %d"
            logging.getLogger("jobsdk").warning(text, self.num_processes, len(there), len(there))
            self.num_processes = len(there)
        self._gpus = there[: self.num_processes]


def _count(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"num_processes must be a number, not {value}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"num_processes must be a whole number, not {value!r:.60}. Fix: num_processes=2") from None
    if number <= 0:
        raise ValueError(f"num_processes has to be a positive integer, got {number}. Fix: num_processes=1")
    return number


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r:.60}. Fix: {name}=True")
    return value


def _script(main: str | os.PathLike[str]) -> Path:
    from pathlib import Path

    from jobsdk.job.paths import working_directory

    path = Path(working_directory(), os.fspath(main))
    if not path.is_file():
        what = f"{path} is a folder, no script" if path.is_dir() else f"there is no script {path}"
        raise JobsdkError(f"{what}. Fix: give the path of a Python file of this machine")
    return path


def _quoted(word: str) -> str:
    """A word for the shell, in pieces where it looks like an expression of a job, which is none here."""
    import shlex

    return shlex.quote(word).replace("$", "$''").replace("{", "{''")


# -- computes and their GPUs -------------------------------------------------------------------------------------------


def _named(name: str) -> Compute:
    from jobsdk import compute as computes

    return computes.resolve(name)


def _cluster(name: str | None) -> Compute:
    """Return the named compute, else Spark. Raises ComputeError without either."""
    from jobsdk import compute as computes

    if name is not None:
        return computes.resolve(name)
    if _has_session({}):
        return computes.type_of(SPARK)(SPARK, {})
    found = computes.configuration()
    of_spark = [entry.name for entry in found.computes.values() if entry.type == SPARK]
    if found.default in of_spark or (found.default != computes.LOCAL and not of_spark):
        return computes.resolve(None)
    if len(of_spark) == 1:
        return computes.resolve(of_spark[0])
    what = (
        "and no compute of type spark in computes.yml"
        if not of_spark
        else f"and several computes: {', '.join(of_spark)}"
    )
    fix = "compute=NAME, or a SparkSession first, or local_mode=True"
    raise ComputeError(f"local_mode is false, there is no SparkSession in this process {what[:200]}. Fix: {fix}")


def _has_session(settings: Mapping[str, Any]) -> bool:
    """Whether this process has a Spark session that is the compute's."""
    from jobsdk.compute.spark import session as spark_session

    return spark_session.open_context(settings) is not None or spark_session.open_remote(settings) is not None


def _setting(name: str, default: str) -> str:
    """A setting of the Spark session of this process."""
    import sys

    from jobsdk.compute.spark import session as spark_session

    session = sys.modules["pyspark.sql"].SparkSession.getActiveSession() or spark_session.open_remote({})
    if session is not None:
        return str(session.conf.get(name, default))
    return str(spark_session.open_context({}).getConf().get(name, default))  # a thread may have no session of its own


def _gpus_here() -> list[str]:
    """The ids of the GPUs that processes started here may use: those that Spark has given to the session of this
    process, else all."""
    from jobsdk.bootstrap.system import processes
    from jobsdk.compute.spark import session as spark_session

    visible = processes.visible_gpus(os.environ)
    context = spark_session.open_context({})
    if context is None or _OF_DRIVER not in context.resources:
        return visible or []
    given = list(context.resources[_OF_DRIVER].addresses)
    if _MASK in os.environ and visible and all(one.isdigit() and int(one) < len(visible) for one in given):
        return [visible[int(one)] for one in given]  # Spark counts those that it sees
    return given


def _gpus_per_node(compute: Compute) -> int:
    """Return how many GPUs a node of the compute has (on Spark, a task); 0 if unknown.

    Raises RuntimeError where Spark gives its tasks none.
    """
    given = re.search("[0-9]+$", str(compute.settings.get("gpus_per_node", "")))  # 8, of Slurm a100:8
    if given:
        return int(given[0])
    if compute.type != SPARK or not _has_session(compute.settings):
        conf = compute.settings.get("conf")
        return int(conf.get(_PER_TASK, 0)) if isinstance(conf, Mapping) else 0
    each = int(_setting(_PER_TASK, "0"))
    if each < 1:
        raise RuntimeError(
            f"use_gpu is true, and Spark gives its tasks no GPUs. Fix: use_gpu=False, or set {_PER_TASK}"
        )
    return each


def _refuse_encryption(compute: Compute) -> None:
    """Raise RuntimeError if Spark encrypts: the processes' own traffic is not encrypted."""
    if compute.type != SPARK or not _has_session(compute.settings) or _setting(_SSL, "false") != "true":
        return
    if _setting(_IGNORE_SSL, "false") == "true":
        import logging

        text = f"{_SSL} is true, and what the processes send one another is not encrypted ({_IGNORE_SSL} is true)"
        logging.getLogger("jobsdk").warning(text)
        return
    raise RuntimeError(
        f"{_SSL} is true, and what the processes of torch.distributed send one another is not encrypted. "
        f"Fix: set {_IGNORE_SSL} to true in the session's configuration if that may be"
    )
