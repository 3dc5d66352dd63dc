"""The barrier stage on Spark Connect, which has no RDDs: a DataFrame's, whose rows nobody wants."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

from jobsdk.compute.spark import session as spark_session
from jobsdk.compute.spark import task as spark_task
from jobsdk.compute.spark.stage import Needs, Stage, travel_by_value
from jobsdk.compute.spark.task import Errand, Question
from jobsdk.errors import ComputeError


class ConnectStage(Stage):
    """Of a session of Spark Connect. Tasks bring logs to this process, not to the server."""

    def __init__(self, session: Any, needs: Needs, run: str) -> None:
        self._session = session
        self._needs = needs
        self._tag = f"jobsdk-{run}"
        version = tuple(int(part) for part in session.version.split(".")[:2])
        if version < (3, 5):
            raise ComputeError(
                f"Spark Connect has no barrier stages before 3.5, and the server is {session.version}. "
                "Fix: use its cluster by master"
            )

    def addresses(self) -> list[str]:
        """Of the interface by which the server is reached: its executors are thought to be near it."""
        host, port = spark_session.host_and_port(spark_session.url_of(self._session))
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            return [str(probe.getsockname()[0])]

    def run(self, errand: Errand, nodes: int) -> None:
        profile = self._profile()
        travel_by_value()
        self._session.addTag(self._tag)  # of this thread
        rows = self._session.range(0, nodes, 1, nodes)
        how: dict[str, Any] = {"barrier": True}
        if profile is not None:
            how["profile"] = profile
        rows.mapInArrow(spark_task.of_batches(errand), "id long", **how).collect()

    def cancel(self) -> None:
        with contextlib.suppress(Exception):  # the server may have gone
            self._session.interruptTag(self._tag)

    def ask(self, question: Question) -> dict[str, Any]:
        travel_by_value()
        row = self._session.range(0, 1, 1, 1).mapInArrow(spark_task.of_question_batches(question), "said string")
        return dict(json.loads(row.collect()[0].said))

    def _profile(self) -> Any:
        """A resource profile, where a node takes more than one task of the session is known to have."""
        if not self._needs.gpus and not self._needs.cpus:
            return None
        from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

        request = TaskResourceRequests()
        if self._needs.cpus:
            request = request.cpus(self._needs.cpus)
        if self._needs.gpus:
            request = request.resource(self._needs.gpu_resource, self._needs.gpus)
        return ResourceProfileBuilder().require(request).build
