"""A local Azure ML for tests: a process of its own, and what its clients find in their environment.

from tests.emulator.emulated import emulated, names, use

@pytest.fixture(scope="module")
def azure() -> Iterator[Running]:
    with emulated() as running:
        yield running

def test_it(azure: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    use(azure, monkeypatch)  # for this process; for others env={**os.environ, **azure.environ}
    ml_client = MLClient(DefaultAzureCredential(), *names(azure))
    azure.forget_requests()
    ...
    management(azure)  # ["PUT /subscriptions/.../jobs/x", ...]
    azure.requests()  # all, as dicts: method, host, path, status, body
    azure.add_fault(method="PUT", path="/jobs/", status=429, retry_after=1)  # see jobsdk.emulator.faults.Fault
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsdk.emulator.process import Running, started
from tests import engines
from tests.needs import needs

#: What a client of an emulator must not find, since it would be heeded first.
_FOREIGN = ("AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_AUTHORITY_HOST", "AZURE_USERNAME", "AZURE_TOKEN_CREDENTIALS")


def azurite() -> str:
    """The program that keeps the blobs."""
    needs("azurite")
    return str(engines.azurite())


@contextlib.contextmanager
def emulated(*options: str, folder: Path | None = None) -> Iterator[Running]:
    """An emulator with `options` of `jobsdk azure-emulator start`. It ends with the block, and all that it started."""
    program = azurite()
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="emulated-")))
        with started(folder, ["--azurite", program, *options]) as running:
            yield running
        left = processes_with(str(folder))
        deadline = time.monotonic() + 30
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = processes_with(str(folder))
        assert not left, f"the emulator left processes running: {left}"


def processes_with(word: str) -> dict[int, str]:
    """Other processes that have a word in their command line or environment (Linux only; elsewhere none)."""
    found = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            line = Path("/proc", name, "cmdline").read_bytes()
            environment = Path("/proc", name, "environ").read_bytes()
        except OSError:  # it has ended, or is somebody else's
            continue
        if word.encode() in line or word.encode() in environment:
            found[int(name)] = line.replace(b"\0", b" ").decode(errors="replace")
    return found


def use(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process a client of the emulator for the time of a test."""
    for name in _FOREIGN:
        monkeypatch.delenv(name, raising=False)
    for name, value in running.environ.items():
        monkeypatch.setenv(name, value)


def names(running: Running) -> tuple[str, str, str]:
    """Subscription, resource group and workspace."""
    environ = running.environ
    return environ["AZURE_SUBSCRIPTION_ID"], environ["AZURE_RESOURCE_GROUP"], environ["AZUREML_WORKSPACE_NAME"]


def management(running: Running) -> list[str]:
    """What was asked of the management API since the start or `forget_requests`: `METHOD /path`, without the query."""
    return [
        f"{one['method']} {one['path'].partition('?')[0]}"
        for one in running.requests()
        if one["host"] == "management.azure.com" and one["method"] != "CONNECT"
    ]
