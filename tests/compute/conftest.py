from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.ssh.sshd import Sshd


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Machines that ssh reaches."""
    servers = Sshd(tmp_path_factory.mktemp("sshd"))
    yield servers
    servers.close()


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a working directory of its own."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
