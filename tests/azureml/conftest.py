"""azure-ai-ml before a service in memory, for this folder's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.azureml import captured


@pytest.fixture(scope="module")
def azure() -> Iterator[captured.Captured]:
    """What azure-ai-ml would send, and its client."""
    logging.getLogger("azure").setLevel(logging.ERROR)  # its notes on experimental classes
    with captured.service() as service:
        yield captured.Captured(service)


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory outside any repository: azure-ai-ml records the state of the one that it is in."""
    folder = tmp_path / "an experiment"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
