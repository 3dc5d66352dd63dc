"""What Spark's errors mean for a run, in plain words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from jobsdk.compute.ends import EngineEnd
from jobsdk.findings import shorten


class _Known(NamedTuple):
    form: re.Pattern[str]
    words: str  # {0}, {1}: groups of the form
    is_lost: bool = False  # whether a node was taken away, else none could be started


TOO_FEW_CORES = (
    "a node takes {1} cores, and an executor of the session has {0}. Fix: a smaller cpus_per_node, or a larger "
    "spark.executor.cores of the session"
)
STOPPED = "the Spark session was stopped"
_KNOWN = [
    _Known(
        re.compile(r"cores per executor \(=(\d+)\) has to be >= the (?:number of cpus per task|\S*) ?= ?(\d+)"),
        TOO_FEW_CORES,
    ),
    _Known(
        re.compile(r"Error: jobsdk: (the driver cannot be reached from [^\n]{1,250})"),
        "{0}. Fix: set host, or port, of the compute to what executors can reach of this machine",
    ),
    _Known(re.compile(r"Error: jobsdk: ([^\n]{1,300})"), "{0}"),
    _Known(
        re.compile(r"PYTHON_VERSION_MISMATCH|Python in worker has different version:? *(\S*)[^\n]*?driver:? *(\S+)"),
        "the executors' Python is not of the minor version that this one has. Fix: set python of the compute "
        "(spark.pyspark.python) to one that is",
    ),
    _Known(
        re.compile(r'Cannot run program "([^"]+)"'),
        "the executors have no {0} to run Python tasks with. Fix: set python of the compute (spark.pyspark.python)",
    ),
    _Known(
        re.compile(r"executor resource: (\S+), amount: (\S+) needs to be >= the task resource request amount of (\d+)"),
        "a node takes {2} of {0}, and an executor of the session has {1}. Fix: start fewer processes on a node, or "
        "make the session with more (spark.executor.resource.{0}.amount)",
    ),
    _Known(
        re.compile(r"No executor resource configs were specified for the following task configs: ([^\n]+)"),
        "the session's executors have no resource {0}. Fix: set spark.executor.resource.{0}.amount, with a discovery "
        "script, when the session is made",
    ),
    _Known(
        re.compile(r"SPARK-24819|BARRIER_STAGE_WITH_INSUFFICIENT|requires more slots|more slots than the total"),
        "Spark has fewer free task slots than the job has nodes, each a task. Fix: more executors or cores, or fewer "
        "nodes",
    ),
    _Known(
        re.compile(r"SPARK-24942|dynamic (?:resource )?allocation"),
        "Spark cannot start all nodes of a job at once with dynamic allocation. Fix: set "
        "spark.dynamicAllocation.enabled to false for the session",
    ),
    _Known(
        re.compile(r"ModuleNotFoundError: No module named '(pyspark[^']*|pyarrow|pandas)'"),
        "the executors' Python has no {0}. Fix: install it there, or set python of the compute",
    ),
    _Known(re.compile(r"ExecutorLostFailure[^\n]*?Reason: ([^\n]{1,160})"), "its executor was lost: {0}", True),
    _Known(
        re.compile(r"Python worker exited unexpectedly|was killed|TaskKilled"), "its Python worker was killed", True
    ),
    _Known(
        re.compile(
            rf"SparkContext was shut ?down|stopped SparkContext|{STOPPED}|"
            r"Master removed our application:?[^\n]{0,100}"
        ),
        STOPPED,
        True,
    ),
    _Known(
        re.compile(
            r"Answer from Java side is empty|Connection refused|Connection reset|An error occurred while trying"
        ),
        "Spark's own process (its JVM) has gone",
        True,
    ),
]


#: The names of Java's classes before what an error says.
_OF_JAVA = re.compile(r"^(?:(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error): )+")


def text_of(error: BaseException) -> str:
    """All that an error of Spark says of itself and of what it comes from."""
    java: Any = getattr(error, "java_exception", None)
    if java is None:
        return f"{type(error).__name__}: {error}"
    try:
        return str(java.toString())
    except Exception:  # the JVM has gone meanwhile
        return str(error)


def words(error: BaseException) -> tuple[str, bool]:
    """One sentence, and whether it says that something was lost that had been there."""
    text = text_of(error)
    for known in _KNOWN:
        found = known.form.search(text)
        if found is not None:
            return known.words.format(*(group or "" for group in found.groups())).strip(), known.is_lost
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    said = _OF_JAVA.sub("", next(iter(lines), type(error).__name__))
    return f"Spark could not run it: {shorten(said, 280)}", False


def ended(error: BaseException, begun: Mapping[int, str], missed: int | None = None) -> EngineEnd:
    """How a run ended whose stage failed. `begun`: the hosts of nodes that had begun and not ended, by rank; `missed`
    is the node that node 0 has missed: of several on a lost executor Spark may blame another one."""
    said, is_lost = words(error)
    at = missed if is_lost and missed in begun else _partition(text_of(error))
    if not is_lost:
        return EngineEnd.failed(said, at)
    if at is None and len(begun) == 1:
        (at,) = begun
    where = f"node {at} ({begun[at]}): " if at is not None and at in begun else "" if at is None else f"node {at}: "
    return EngineEnd.lost(f"{where}{said}", at)


def _partition(text: str) -> int | None:
    """The task that Spark blames, which is the node."""
    found = re.search(r"barrier task ResultTask\(\d+, (\d+)\)|[Tt]ask (\d+) in stage|[Tt]ask (\d+)\.\d+ in stage", text)
    return None if found is None else int(next(filter(None, found.groups())))
