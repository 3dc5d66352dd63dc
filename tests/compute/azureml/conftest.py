from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsdk import MLClient
from jobsdk.emulator.process import Running
from tests.emulator import emulated


@pytest.fixture(scope="session")
def local_azure() -> Iterator[Running]:
    """A local Azure ML for all tests of a process."""
    with emulated.emulated() as running:
        yield running


@pytest.fixture
def azure(local_azure: Running, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Running]:
    """The local Azure ML, which this process asks as it would ask the real one; nothing asked of it is known yet."""
    emulated.use(local_azure, monkeypatch)
    local_azure.forget_requests()
    yield local_azure
    local_azure.clear_faults()


@pytest.fixture
def client(azure: Running) -> MLClient:
    """A client of its workspace, as azure-ai-ml's is made."""
    return MLClient(None, *emulated.names(azure))
