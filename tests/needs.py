"""What tests need: the markers `engine(name)`, `framework(name)`, `slow`, `root`, `gpu`, `cluster`, and their effects.
What is marked `parity` is `slow`; the Makefile leaves it out of `make test`, and .ci/run says when it runs.

Most tests get their markers from the fixtures that they use (`_FIXTURES`); the others carry them. A test whose engine
is missing is skipped, and one closing line says which engines were missing; JOBSDK_REQUIRE_ENGINES=1 makes each of them
a failure. JOBSDK_WITHOUT_ENGINES=1 turns the rule around: every test with an engine must be skipped, and no other.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections import Counter
from collections.abc import Sequence

import pytest

from tests import engines

engine, framework = pytest.mark.engine, pytest.mark.framework

#: The markers that come with a fixture, directly or through others.
_FIXTURES: dict[str, Sequence[pytest.MarkDecorator]] = {
    "azure": [engine("azurite"), framework("azure")],
    "captured": [framework("azure")],
    "cgroup": [engine("cgroup")],
    "chromium": [engine("chromium")],
    "java": [engine("java"), framework("spark")],
    "kernel": [framework("jupyter")],
    "mpi": [framework("mpi")],
    "mpich": [engine("mpich"), framework("mpi")],
    "openmpi": [framework("mpi")],
    "ray": [framework("ray")],
    "ray_cluster": [framework("ray")],
    "ray_train": [framework("ray")],
    "require_deepspeed": [framework("deepspeed"), engine("compiler")],
    "require_mpirun": [framework("mpi")],
    "s3": [framework("stores")],
    "slurm_cluster": [engine("slurm")],
    "small_disk": [pytest.mark.root],
    "torch_failures": [framework("torch")],
    "sshd": [engine("ssh")],
    "whole_cluster": [engine("containers")],
}
_REQUIRED, _ABSENT = (os.environ.get(f"JOBSDK_{name}_ENGINES") == "1" for name in ("REQUIRE", "WITHOUT"))
#: What says how the tests run. All of it is read when the tests are imported; jobs must not inherit it.
_SETTINGS = ("JOBSDK_REQUIRE_ENGINES", "JOBSDK_WITHOUT_ENGINES", "JOBSDK_PARITY", "JOBSDK_ENGINES")
_SKIPPED = "engine missing: "  # how the reason begins
_WITH_ENGINE = "with an engine"  # a keyword of tests; the marker's name is also that of a folder of tests


@functools.lru_cache
def _missing(name: str) -> str:
    """What an engine lacks. A feature of the kernel cannot be taken off PATH: it counts as absent where all must be."""
    of_kernel = _ABSENT and name in engines.OF_KERNEL
    return f"leave to use {name}" if of_kernel else engines.missing(name)


_running: set[str] = set()  # the engines of the test that is running
_wrongly: list[str] = []  # tests that should have been skipped, and others


def _names(item: pytest.Item, marker: str) -> set[str]:
    return {mark.args[0] for mark in item.iter_markers(marker)}


def _is_heavy(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("engine", "framework", "slow"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before pytest selects by markers: give each test those of its fixtures."""
    for name in _SETTINGS:
        os.environ.pop(name, None)
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            for mark in _FIXTURES.get(fixture, ()):
                item.add_marker(mark)
        if _names(item, "engine"):
            item.keywords[_WITH_ENGINE] = True
        if item.get_closest_marker("parity"):
            item.add_marker(pytest.mark.slow)
        unknown = (_names(item, "engine") - set(engines.ENGINES)) | (_names(item, "framework") - engines.FRAMEWORKS)
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: {', '.join(sorted(unknown))} is not in tests/engines.py")
    heavy = {item.path for item in items if _is_heavy(item)}
    items.sort(key=lambda item: item.path not in heavy)  # a file that takes minutes must not be the last to start


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _running.clear()
    _running.update(_names(item, "engine"))
    lacking = [name for name in sorted(_running) if _missing(name)]
    if lacking:
        text = _SKIPPED + ", ".join(lacking)
        if _REQUIRED:
            details = "; ".join(f"{name} lacks {_missing(name)}" for name in lacking)
            pytest.fail(f"{details}, and JOBSDK_REQUIRE_ENGINES=1: run {engines.INSTALL}", pytrace=False)
        pytest.skip(text)
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("only root can do this")
    if item.get_closest_marker("gpu") and not shutil.which("nvidia-smi"):
        pytest.skip("no GPU here")
    if item.get_closest_marker("cluster") and not os.environ.get("KUBECONFIG_TEST"):
        pytest.skip("KUBECONFIG_TEST names no cluster")


def needs(name: str) -> None:
    """Called by whatever starts an engine: a test that uses it without the marker would fail where it is missing."""
    if name not in _running:
        pytest.fail(f"this test uses the engine {name}: mark it with engine({name!r})", pytrace=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    needs_more = {"root", "gpu", "cluster"} & set(report.keywords)
    is_wrong = report.skipped is not (_WITH_ENGINE in report.keywords)
    if _ABSENT and report.when == "setup" and not needs_more and is_wrong:
        _wrongly.append(report.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        if reason.startswith(_SKIPPED):
            counts.update(reason.removeprefix(_SKIPPED).split(", "))
    if counts:
        which = ", ".join(f"{name} ({number})" for name, number in sorted(counts.items()))
        terminalreporter.write_line(f"Not tested, because these engines are missing: {which}. Run {engines.INSTALL}")
    for name in _wrongly:
        terminalreporter.write_line(f"JOBSDK_WITHOUT_ENGINES=1: skipped without an engine, or not with one: {name}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    present = [name for name in engines.ENGINES if _ABSENT and not _missing(name)]
    _wrongly.extend(f"the engine {name} is here" for name in present)
    if _wrongly and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
