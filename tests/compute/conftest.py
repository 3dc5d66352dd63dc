from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stores
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


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of an S3 server."""
    with stores.s3_server() as url:
        yield url


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> stores.S3:
    """A bucket of its own, and the variables of a client."""
    store = stores.S3(s3_server, f"bucket-{os.urandom(4).hex()}")
    store.make_bucket()
    stores.use(store, monkeypatch)
    return store
