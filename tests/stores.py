"""A real S3 server on loopback, and what its clients find in their environment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
