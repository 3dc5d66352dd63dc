"""Spark: each node of a job is one task of a barrier stage, on the session of this process or one that is made.

computes:
  lake: {type: spark, master: "spark://head:7077", conf: {spark.executor.memory: 8g}}
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from jobsdk.bootstrap.spec.secrets import Redactor
from jobsdk.compute import job_rules
from jobsdk.compute.base import Check, Spec, Warn
from jobsdk.compute.engine import EngineCompute
from jobsdk.compute.settings import meanings
from jobsdk.compute.spark import rules as spark_rules
from jobsdk.compute.spark import settings as spark_settings
from jobsdk.errors import ComputeError
from jobsdk.findings import Finding
from jobsdk.installation import install_command

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.compute.engine.hold import Hold
    from jobsdk.compute.spark.stage import Needs, Stage
    from jobsdk.job.command import CommandJob
    from jobsdk.job.machines import Machine
    from jobsdk.job.workers import NodeCapacity
    from jobsdk.planning.placement import Placement


class SparkCompute(EngineCompute):
    """A run is driven where its session is: see `EngineCompute`."""

    type: ClassVar[str] = "spark"
    settings_known: ClassVar[Mapping[str, str]] = meanings(spark_settings.SETTINGS)
    inherited: ClassVar[Mapping[str, str]] = {
        "PATH": "<PATH of the executor>",
        "PYTHONPATH": "<PYTHONPATH of the executor>",
    }

    def mistakes(self, own: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        return spark_settings.mistakes(own)

    # -- compiling -------------------------------------------------------------------------------------------------

    def findings(self, job: CommandJob, plan: Plan, at: Placement, *, build_env: bool = False) -> Sequence[Finding]:
        return spark_rules.findings(self.name, self.settings, job, plan, build_env)

    def compile(
        self, job: CommandJob, plan: Plan, at: Placement, *, in_place: bool = False, build_env: bool = False
    ) -> Spec:
        gpus = spark_rules.gpus_of_node(self.settings, plan)
        cpus = spark_rules.cpus_of_node(self.settings, job, at.layout)
        spec: Spec = {
            "compute": self.name,
            "type": self.type,
            "run": plan["run"],
            "code": job_rules.code_here(job),
            "stage": {
                "barrier": True,
                "tasks": plan["nodes"],
                "task": {"cpus": cpus, "gpus": gpus, "gpu_resource": self.settings.get("gpu_resource", "gpu")},
            },
        }
        if "remote" in self.settings:
            return {**spec, "session": {"remote": self.settings["remote"]}}
        if "master" not in self.settings:
            return {**spec, "session": "the one that is open in the submitting process"}
        conf = spark_settings.conf(self.settings, plan["nodes"], gpus, cpus, plan["run"])
        return {**spec, "session": {"master": self.settings["master"], "conf": Redactor().data(conf)}}

    def room(self, job: CommandJob, machine: Machine | None) -> NodeCapacity | None:
        from jobsdk.job.workers import NodeCapacity

        known = super().room(job, machine) or NodeCapacity("")
        gpus, cpus = (self.settings.get(name) for name in ("gpus_per_node", "cpus_per_node"))
        return known._replace(name=f"a task of {self.name}", gpus=gpus or known.gpus, cpus=cpus or known.cpus)

    # -- running ---------------------------------------------------------------------------------------------------

    def prepare(self, spec: Spec, warn: Warn) -> None:
        if importlib.util.find_spec("pyspark") is None:
            raise ComputeError(f"the compute {self.name} needs Spark here. Fix: {install_command('spark')}")
        if not self.has_session() and not isinstance(spec["session"], dict):
            raise ComputeError(
                f"the compute {self.name} names no cluster, and this process has no Spark session open. Fix: set its "
                "master (or remote), or call SparkSession.builder.getOrCreate() before"
            )
        if not self.has_session():
            from jobsdk.compute.spark import session as spark_session

            spark_session.require_cluster(self.settings)
        if self.has_session() and self.settings.get("conf"):
            warn(f"conf of the compute {self.name} has no effect: the Spark session that is open here is used")

    def has_session(self) -> bool:
        from jobsdk.compute.spark import session as spark_session

        return (
            spark_session.open_context(self.settings) is not None
            or spark_session.open_remote(self.settings) is not None
        )

    def drive(self, hold: Hold) -> None:
        from jobsdk.compute.spark.drive import Drive
        from jobsdk.compute.spark.stage import Needs

        task = hold.spec["stage"]["task"]
        needs = Needs(task["gpus"], task["cpus"] or 0, task["gpu_resource"])
        with self._stage(hold, needs) as stage:
            Drive(hold, stage, needs, self.settings.get("host"), self.settings.get("port")).drive()

    @contextlib.contextmanager
    def _stage(self, hold: Hold, needs: Needs) -> Iterator[Stage]:
        """On the session that is open here, else on one that lives as long as the run."""
        from jobsdk.compute.spark import session as spark_session
        from jobsdk.compute.spark.stage import ClassicStage

        context, session = spark_session.open_context(self.settings), spark_session.open_remote(self.settings)
        if context is not None:
            yield ClassicStage(context, needs, hold.run.name)
            return
        with contextlib.ExitStack() as stack:
            if session is None:
                if threading.current_thread() is not threading.main_thread():
                    raise ComputeError("the Spark session was stopped before the run began")
                hold.tell("queued", message="makes a Spark session")
                if "remote" not in self.settings:
                    conf = {**hold.spec["session"]["conf"], **spark_settings.given_conf(self.settings)}
                    made = spark_session.made_context(self.settings, conf)
                    yield ClassicStage(stack.enter_context(made), needs, hold.run.name)
                    return
                session = stack.enter_context(spark_session.made_remote(self.settings))
            from jobsdk.compute.spark.connect import ConnectStage

            yield ConnectStage(session, needs, hold.run.name)

    # -- checking --------------------------------------------------------------------------------------------------

    def check(self) -> Sequence[Check]:
        from jobsdk.compute.spark import check as spark_check

        return spark_check.check(self.settings)
