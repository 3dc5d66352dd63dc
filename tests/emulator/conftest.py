"""A local Azure ML for the tests of a file, and azure-ai-ml's own client for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jobsdk.emulator.process import Running
from tests.emulator.emulated import emulated, names, use


@pytest.fixture(scope="module")
def azure() -> Iterator[Running]:
    with emulated() as running:
        yield running


@pytest.fixture
def client(azure: Running, monkeypatch: pytest.MonkeyPatch) -> Any:
    from azure.ai.ml import MLClient
    from azure.identity import DefaultAzureCredential

    use(azure, monkeypatch)
    return MLClient(DefaultAzureCredential(), *names(azure), show_progress=False)
