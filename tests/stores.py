"""Real object stores on loopback, and what their clients find in their environment."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

KEY, SECRET = "loopback-key", "loopback-swordfish"


class S3(NamedTuple):
    """`url` is the server's, `bucket` the test's own."""

    url: str
    bucket: str

    def make_bucket(self) -> None:
        self._client().mkdir(self.bucket)

    def put(self, key: str, content: bytes) -> str:
        """Create an object; its URL."""
        self._client().pipe_file(f"{self.bucket}/{key}", content)
        return f"s3://{self.bucket}/{key}"

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Everything below a prefix, by the rest of its key."""
        system, folder = self._client(), f"{self.bucket}/{prefix}".rstrip("/")
        return {name[len(folder) + 1 :]: system.cat_file(name) for name in system.find(folder)}

    def _client(self) -> Any:
        import s3fs

        options = {"endpoint_url": self.url, "key": KEY, "secret": SECRET}
        return s3fs.S3FileSystem(**options, skip_instance_cache=True, use_listings_cache=False)


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """The URL of a server, on a port of its own."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def use(store: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process, and what it starts, a client of the server."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("FSSPEC_S3_ENDPOINT_URL", store.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)  # fsspec reads its own variables once, when it is imported


class Azure(NamedTuple):
    """A container `data` of a blob store; its account has the name and key that Azurite documents."""

    connection: str

    @property
    def secret(self) -> str:
        return self.connection.partition("AccountKey=")[2].partition(";")[0]

    def put(self, name: str, content: bytes) -> None:
        self._client().pipe_file(f"data/{name}", content)

    def objects(self, prefix: str) -> dict[str, bytes]:
        system = self._client()
        return {name[len(f"data/{prefix}/") :]: system.cat_file(name) for name in system.find(f"data/{prefix}")}

    def make_container(self) -> None:
        self._client().mkdir("data")

    def _client(self) -> Any:
        import adlfs

        return adlfs.AzureBlobFileSystem(
            connection_string=self.connection, skip_instance_cache=True, use_listings_cache=False
        )


@contextlib.contextmanager
def azure_blobs(program: str, folder: Path) -> Iterator[Azure]:
    """Azurite, on a port of its own."""
    argv = [program, "--blobHost", "127.0.0.1", "--blobPort", "0", "--location", str(folder), "--skipApiVersionCheck"]
    with subprocess.Popen([*argv, "--disableTelemetry"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            words = next(line for line in process.stdout if "successfully listens" in line)
            url = words.split()[-1]
            key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
            account = f"AccountName=devstoreaccount1;AccountKey={key};BlobEndpoint={url}/devstoreaccount1"
            yield Azure(f"DefaultEndpointsProtocol=http;{account};")
        finally:
            process.terminate()
