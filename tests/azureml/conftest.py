"""azure-ai-ml before a service in memory, for this folder's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.azureml.captured import Captured, service


@pytest.fixture(scope="module")
def captured() -> Iterator[Captured]:
    """What azure-ai-ml would send, and its client."""
    logging.getLogger("azure").setLevel(logging.ERROR)  # its notes on experimental classes
    with service() as in_memory:
        yield Captured(in_memory)


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory outside any repository: azure-ai-ml records the state of the one that it is in."""
    folder = tmp_path / "an experiment"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
