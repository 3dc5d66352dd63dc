"""The barrier stage whose tasks are the nodes of a run, on a session that is open in this process."""

from __future__ import annotations

import contextlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jobsdk.bootstrap.control import channel
from jobsdk.compute.engine import node
from jobsdk.compute.spark import errors as spark_errors
from jobsdk.compute.spark import settings as spark_settings
from jobsdk.compute.spark import task as spark_task
from jobsdk.compute.spark.task import Errand, Question
from jobsdk.errors import ComputeError


class Needs(NamedTuple):
    """What one node takes: GPUs (0: the job does not ask for any), and cores (0: as many as any task)."""

    gpus: int
    cpus: int
    gpu_resource: str


class Stage(ABC):
    """How one kind of session runs `Errand`s."""

    @abstractmethod
    def addresses(self) -> list[str]:
        """By which tasks may reach this process."""

    def bind_address(self) -> str:
        """Where this process is to listen; empty for all addresses of the machine."""
        return ""

    def room(self) -> int | None:
        """How many tasks can run at the same time, were nothing else running; None: not known."""
        return None

    @property
    def may_grow(self) -> bool:
        """Whether `room` may become more by itself: executors register one by one."""
        return True

    def own_gpus(self) -> list[str] | None:
        """The GPUs of this process, where tasks run in it and Spark gives them none."""
        return None

    def executor_variables(self) -> set[str]:
        """Names of the variables that the user has set for executors."""
        return set()

    @abstractmethod
    def run(self, errand: Errand, nodes: int) -> None:
        """Run so many tasks at the same time; returns once all have ended. Raises what the engine raises."""

    @abstractmethod
    def cancel(self) -> None:
        """End the tasks, or what waits to become some."""

    @abstractmethod
    def ask(self, question: Question) -> dict[str, Any]:
        """What one task answers. Raises what the engine raises."""


class ClassicStage(Stage):
    """Of a SparkContext."""

    def __init__(self, context: Any, needs: Needs, run: str) -> None:
        self._context = context
        self._group = f"jobsdk-{run}"
        self._run = run
        self._conf: Mapping[str, str] = dict(context.getConf().getAll())
        if why := spark_settings.never_starts(context.master, self._conf):
            raise ComputeError(why)
        self._profile = self._profile_of(needs)

    @property
    def may_grow(self) -> bool:
        return not spark_settings.is_local(self._context.master)

    def addresses(self) -> list[str]:
        return [self._conf["spark.driver.host"]]

    def bind_address(self) -> str:
        return self._conf.get("spark.driver.bindAddress") or self._conf["spark.driver.host"]

    def room(self) -> int | None:
        from py4j.protocol import Py4JError

        try:  # not of Spark's public interface, but the very number that its own check of a barrier stage takes
            scala = self._context._jsc.sc()
            profile = self._profile._java_resource_profile if self._profile is not None else None
            return int(scala.maxNumConcurrentTasks(profile or scala.resourceProfileManager().resourceProfileFromId(0)))
        except Py4JError:
            return None

    def own_gpus(self) -> list[str] | None:
        if self.may_grow:
            return None
        found = self._context.resources.get(self._resource)
        return None if found is None else [str(one) for one in found.addresses]

    def executor_variables(self) -> set[str]:
        return {name.removeprefix(_OF_EXECUTORS) for name in self._conf if name.startswith(_OF_EXECUTORS)}

    def run(self, errand: Errand, nodes: int) -> None:
        try:
            self._run_tasks(errand, nodes)
        except AttributeError as error:  # from PySpark, when another thread stops the session meanwhile
            if self._context._jsc is None:
                raise ComputeError(spark_errors.STOPPED) from error
            raise

    def _run_tasks(self, errand: Errand, nodes: int) -> None:
        self._context.setJobGroup(self._group, f"jobsdk run {self._run}", interruptOnCancel=True)
        rdd = self._context.parallelize(range(nodes), nodes)
        travel_by_value()
        stage = rdd.barrier().mapPartitions(spark_task.of_partition(errand))
        if self._profile is not None:
            stage = stage.withResources(self._profile)
        stage.collect()

    def cancel(self) -> None:
        from py4j.protocol import Py4JError

        with contextlib.suppress(Py4JError, OSError, AttributeError):  # the session may have been stopped
            self._context.cancelJobGroup(self._group)

    def ask(self, question: Question) -> dict[str, Any]:
        travel_by_value()
        (said,) = self._context.parallelize([0], 1).map(spark_task.of_question(question)).collect()
        return dict(json.loads(said))

    def _profile_of(self, needs: Needs) -> Any:
        """A resource profile for this stage, where tasks of the session have less than a node takes."""
        self._resource = needs.gpu_resource
        gpus = float(self._conf.get(f"spark.task.resource.{needs.gpu_resource}.amount", 0))
        cpus = float(self._conf.get("spark.task.cpus", 1))
        if not self.may_grow or (needs.gpus <= gpus and needs.cpus in (0, cpus)):
            return None
        from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

        cores = spark_settings.cores_of_executor(self._context.master, self._conf)
        if cores is not None and needs.cpus > cores:
            raise ComputeError(spark_errors.TOO_FEW_CORES.format(cores, needs.cpus))
        request = TaskResourceRequests().cpus(needs.cpus or int(cpus))
        if needs.gpus or gpus:
            request = request.resource(needs.gpu_resource, max(needs.gpus, gpus))
        profile = ResourceProfileBuilder().require(request).build
        try:  # Spark gets to know it here, without which it does not say how much room there is for it
            self._context.parallelize([], 1).withResources(profile)
        except Exception as error:  # Java's, or pyspark's own
            raise ComputeError(spark_errors.words(error)[0]) from error
        return profile


_OF_EXECUTORS = "spark.executorEnv."


def travel_by_value() -> None:
    """Let what tasks run be sent along with them: executors have no jobsdk. It holds for this process from now on."""
    from pyspark import cloudpickle

    register: Any = cloudpickle.register_pickle_by_value
    for module in (spark_task, node, channel):
        register(module)


class Running:
    """A stage that is being run by a thread of its own."""

    def __init__(self, stage: Stage, errand: Errand, nodes: int) -> None:
        self.error: BaseException | None = None
        self._stage = stage
        self._thread = threading.Thread(target=self._run, args=(errand, nodes), name="jobsdk-stage", daemon=True)
        self._thread.start()

    def _run(self, errand: Errand, nodes: int) -> None:
        try:
            self._stage.run(errand, nodes)
        except BaseException as error:
            self.error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @contextlib.contextmanager
    def ended_at_last(self) -> Iterator[None]:
        """No task outlives this."""
        try:
            yield
        finally:
            if not self.is_over:
                self._stage.cancel()
                self._thread.join(30.0)
