"""Sessions of Spark: the one that is open in this process, or one that is made for a run."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from jobsdk.bootstrap.spec.secrets import is_secret
from jobsdk.compute.engine import reaching
from jobsdk.compute.spark import errors as spark_errors
from jobsdk.errors import ComputeError
from jobsdk.installation import install_command


def open_context(settings: Mapping[str, Any]) -> Any:
    """The SparkContext of this process, if it has one that is the compute's; else None. Imports nothing."""
    module = sys.modules.get("pyspark")
    context = getattr(getattr(module, "SparkContext", None), "_active_spark_context", None)
    if context is None or "remote" in settings or settings.get("master", context.master) != context.master:
        return None
    return context


def open_remote(settings: Mapping[str, Any]) -> Any:
    """The Spark Connect session of this process, if it has one that is the compute's; else None. Imports nothing."""
    module = sys.modules.get("pyspark.sql.connect.session")
    if module is None or "master" in settings:
        return None
    kind = module.SparkSession
    session = kind.getActiveSession() or kind._default_session
    if session is None or session.is_stopped:
        return None
    url = settings.get("remote")
    return session if url is None or host_and_port(url) == host_and_port(url_of(session)) else None


@contextlib.contextmanager
def made_context(settings: Mapping[str, Any], conf: Mapping[str, str]) -> Iterator[Any]:
    """A SparkContext of one's own. Raises ComputeError where there can be none."""
    master = settings["master"]
    require_cluster(settings)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ComputeError(f"Spark cannot be used here: {error}. Fix: {install_command('spark')}") from None
    builder = SparkSession.builder.master(master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        with _environment(master, conf):
            _start_jvm(master, conf)
            session = builder.getOrCreate()
    except Exception as error:
        raise ComputeError(_cannot(master, error)) from None
    try:
        yield session.sparkContext
    finally:
        with contextlib.suppress(Exception):  # it may have gone already
            session.stop()


def _start_jvm(master: str, conf: Mapping[str, str]) -> None:
    """The JVM of this process, if it has none. Left to itself a session gives it all of `conf` on its command line,
    where every user of this machine sees it; what is secret there reaches it by the session's own connection."""
    from pyspark import SparkConf, SparkContext

    open_to_all = [(name, value) for name, value in conf.items() if not is_secret(name, value)]
    SparkContext._ensure_initialized(conf=SparkConf().setMaster(master).setAll(open_to_all))


@contextlib.contextmanager
def _environment(master: str, conf: Mapping[str, str]) -> Iterator[None]:
    """What pyspark reads of the environment as a session is made, and only then."""
    before = {name: os.environ.get(name) for name in ("PYSPARK_PYTHON", "SPARK_REMOTE")}
    os.environ.pop("SPARK_REMOTE", None)  # of a user who works with Spark Connect otherwise
    if "spark.pyspark.python" in conf:  # which only spark-submit reads
        os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]
    elif master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def made_remote(settings: Mapping[str, Any]) -> Iterator[Any]:
    """A Spark Connect session of one's own. Raises ComputeError where there can be none."""
    url = settings["remote"]
    require_cluster(settings)
    try:
        from pyspark.sql import SparkSession

        session = SparkSession.builder.remote(url).create()
        session.version  # noqa: B018 - asks the server
    except ImportError as error:
        raise ComputeError(f"Spark Connect cannot be used here: {error}. Fix: pip install 'pyspark[connect]'") from None
    except Exception as error:
        raise ComputeError(_cannot(url, error)) from None
    try:
        yield session
    finally:
        with contextlib.suppress(Exception):
            session.stop()


def url_of(session: Any) -> str:
    """The address of a Spark Connect session's server."""
    builder = session.client._builder
    return f"sc://{builder.endpoint}"


def host_and_port(url: str) -> tuple[str, int]:
    """Of sc://HOST:PORT/;OPTIONS, whose port need not be there."""
    return reaching.split(url.removeprefix("sc://").split("/")[0], 15002)


def require_cluster(settings: Mapping[str, Any]) -> None:
    """Raises ComputeError where nobody listens at the compute's master or remote: Spark itself tries for a minute."""
    master, remote = settings.get("master", ""), settings.get("remote")
    if remote is not None:
        reaching.require(remote, *host_and_port(remote))
    elif found := re.fullmatch(r"spark://([^,]+)", master):
        reaching.require(master, *reaching.split(found[1], 7077))


def _cannot(place: str, error: Exception) -> str:
    text = spark_errors.text_of(error)
    if "JAVA_GATEWAY_EXITED" in text or "JAVA_HOME" in text or "Java gateway process" in text:
        return "Spark cannot start its JVM here. Fix: install Java 17, or set JAVA_HOME; then see `java -version`"
    said = spark_errors.words(error)[0]
    return said if ". Fix: " in said else f"no session with {place} can be made: {said}"
